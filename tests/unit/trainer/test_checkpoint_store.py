"""The folder of checkpoints."""

from pathlib import Path

from services.trainer.checkpoint_store import CheckpointStore


def make(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        store.path(step).mkdir(parents=True)


def test_the_newest_step_is_the_highest_complete_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.newest_step() is None
    make(store, 5, 20, 15)
    (tmp_path / "checkpoints" / "step-00000025.partial").mkdir()
    assert store.newest_step() == 20


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    make(store, 5, 10, 15)
    store.prune()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000010", "step-00000015"]


def test_the_reference_is_no_step_and_is_never_pruned(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.reference_path.mkdir()
    assert store.newest_step() is None
    make(store, 5, 10)
    store.prune()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["reference", "step-00000010"]

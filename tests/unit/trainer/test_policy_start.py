"""Where the policy and its reference come from, fresh and resumed."""

from pathlib import Path

import pytest

from services.common.errors import InvalidInputError
from services.trainer.checkpoint_store import CheckpointStore
from services.trainer.conversions import order_to_bytes
from services.trainer.orders import (
    KeepReference,
    LoadPolicy,
    RankOrder,
    RankReply,
    ResetOptimizer,
    SavePolicy,
    WarmStartStep,
)
from services.trainer.policy_start import start_policy
from services.trainer.rank_group import RankGroup
from services.trainer.reports import Board


class OneRank:
    """Collectives of a single rank."""

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        assert data is not None
        return data

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        return [data]


class RecordingWorker:
    """Keeps the orders; a saved policy is an empty folder."""

    def __init__(self) -> None:
        self.orders: list[RankOrder] = []

    def carry_out(self, order: RankOrder) -> RankReply:
        order_to_bytes(order)
        self.orders.append(order)
        if isinstance(order, SavePolicy):
            order.folder.mkdir(parents=True, exist_ok=True)
        return RankReply()


def start(
    tmp_path: Path, *, keeps_reference: bool, num_warm_start_steps: int = 0, worker: RecordingWorker | None = None
) -> tuple[int, list[RankOrder]]:
    worker = worker or RecordingWorker()
    step = start_policy(
        RankGroup(OneRank(), worker),
        board=Board(),
        checkpoints=CheckpointStore(tmp_path / "checkpoints", keep=2),
        num_warm_start_steps=num_warm_start_steps,
        warm_start_folder=tmp_path / "warm",
        keeps_reference=keeps_reference,
        should_stop=lambda: False,
    )
    return step, worker.orders


def test_the_reference_is_the_policy_after_the_warm_start(tmp_path: Path) -> None:
    reference = tmp_path / "checkpoints" / "reference"
    step, orders = start(tmp_path, keeps_reference=True, num_warm_start_steps=2)
    assert step == 0
    assert orders == [
        WarmStartStep(step=0),
        WarmStartStep(step=1),
        ResetOptimizer(),
        SavePolicy(folder=tmp_path / "warm", with_optimizer=False),
        SavePolicy(folder=reference, with_optimizer=False),
        KeepReference(),
    ]


def test_without_a_warm_start_it_is_the_model_as_it_came(tmp_path: Path) -> None:
    _, orders = start(tmp_path, keeps_reference=True)
    assert orders == [SavePolicy(folder=tmp_path / "checkpoints" / "reference", with_optimizer=False), KeepReference()]


def test_a_cached_warm_start_is_the_reference_too(tmp_path: Path) -> None:
    (tmp_path / "warm").mkdir()
    _, orders = start(tmp_path, keeps_reference=True, num_warm_start_steps=2)
    assert orders == [
        LoadPolicy(folder=tmp_path / "warm", with_optimizer=False),
        SavePolicy(folder=tmp_path / "checkpoints" / "reference", with_optimizer=False),
        KeepReference(),
    ]


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    _, before = start(tmp_path, keeps_reference=True)
    assert start(tmp_path, keeps_reference=True) == (0, before)


def test_a_resumed_run_has_the_reference_it_began_with(tmp_path: Path) -> None:
    start(tmp_path, keeps_reference=True)
    newest = tmp_path / "checkpoints" / "step-00000005"
    newest.mkdir()
    step, orders = start(tmp_path, keeps_reference=True)
    assert step == 5
    assert orders == [
        LoadPolicy(folder=tmp_path / "checkpoints" / "reference", with_optimizer=False),
        KeepReference(),
        LoadPolicy(folder=newest, with_optimizer=True),
    ]


def test_a_run_that_began_without_a_reference_cannot_go_on_with_one(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000005").mkdir(parents=True)
    worker = RecordingWorker()
    with pytest.raises(InvalidInputError, match=r"reference: is missing.*set trainer\.algorithm\.kl\.placement=off$"):
        start(tmp_path, keeps_reference=True, worker=worker)
    assert worker.orders == []


def test_without_a_kl_term_nothing_is_kept(tmp_path: Path) -> None:
    assert start(tmp_path, keeps_reference=False) == (0, [])


def test_without_a_kl_term_a_kept_reference_is_not_loaded(tmp_path: Path) -> None:
    start(tmp_path, keeps_reference=True)
    newest = tmp_path / "checkpoints" / "step-00000005"
    newest.mkdir()
    assert start(tmp_path, keeps_reference=False) == (5, [LoadPolicy(folder=newest, with_optimizer=True)])

from pathlib import Path

import pytest
import torch

from services.common.errors import InvalidInputError, StateConflictError
from services.trainer.batch import PackedBatch
from services.trainer.fake_policy import FakePolicy
from services.trainer.policy import LossSums, Policy, TokenStatistics


def _batch() -> PackedBatch:
    """Tokens 0 1 2 and 1 0, all labels but the last of each sequence count."""
    mask = torch.tensor([True, True, False, True, False])
    return PackedBatch(
        token_ids=torch.tensor([0, 1, 2, 1, 0]),
        labels=torch.tensor([1, 2, 0, 0, 0]),
        position_ids=torch.tensor([0, 1, 2, 0, 1]),
        cu_seqlens=torch.tensor([0, 3, 5], dtype=torch.int32),
        loss_mask=mask,
        advantages=torch.zeros(5),
        engine_logprobs=torch.zeros(5),
        sample_indices=(0, 1),
    )


def _cross_entropy(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    loss = -torch.where(batch.loss_mask, statistics.logprobs, 0.0).sum()
    return LossSums(loss_sum=loss, metric_sums={"loss": float(loss.detach())})


def _update(policy: Policy, batches: list[PackedBatch], lr: float = 0.5) -> float:
    figures = policy.update(batches, _cross_entropy, global_count=3.0, lr=lr, mtp_lr=0.0, weight_decay=0.0)
    return figures.metric_sums["loss"]


def test_a_step_moves_the_table_down_the_gradient() -> None:
    policy = FakePolicy(vocab_size=3)
    table = policy.owned_shards()[0].tensor
    before = table.clone()
    _update(policy, [_batch()])
    # Row 0 has label 1 once, row 1 has labels 2 and 0, row 2 has none that counts; the loss is divided by 3.
    softmax = before.softmax(-1)
    one_hots = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    wanted = before + 0.5 / 3 * (one_hots - torch.tensor([[1.0], [2.0], [0.0]]) * softmax)
    torch.testing.assert_close(table, wanted)


def _less_entropy(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    return LossSums(loss_sum=torch.where(batch.loss_mask, statistics.entropies, 0.0).sum(), metric_sums={})


def test_entropies_carry_gradient() -> None:
    policy = FakePolicy(vocab_size=3, temperature=0.8)
    table = policy.owned_shards()[0].tensor
    before = table.clone()
    policy.update([_batch()], _less_entropy, global_count=3.0, lr=0.5, mtp_lr=0.0, weight_decay=0.0)
    # dH/dz = -p (log p + H) / temperature; row 0 counts once, row 1 twice, row 2 not at all
    logprobs = (before / 0.8).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1, keepdim=True)
    slopes = -logprobs.exp() * (logprobs + entropies) / 0.8
    torch.testing.assert_close(table, before - 0.5 / 3 * torch.tensor([[1.0], [2.0], [0.0]]) * slopes)


def test_log_probabilities_are_taken_at_the_temperature() -> None:
    policy = FakePolicy(vocab_size=3, temperature=0.5)
    table = policy.owned_shards()[0].tensor
    statistics = policy.statistics([_batch()])[0]
    assert statistics.logprobs[0].item() == pytest.approx(float((table[0] / 0.5).log_softmax(-1)[1]))


def test_it_learns_and_counts() -> None:
    policy = FakePolicy(vocab_size=3)
    losses = [_update(policy, [_batch()]) for _ in range(20)]
    assert losses == sorted(losses, reverse=True)
    assert policy.num_updates == 20
    policy.reset_optimizer()
    assert (policy.num_updates, policy.num_resets) == (0, 1)


def test_a_saved_policy_comes_back(tmp_path: Path) -> None:
    policy, other = FakePolicy(vocab_size=3, seed=1), FakePolicy(vocab_size=3, seed=2)
    policy.save(tmp_path / "checkpoint", with_optimizer=True)
    other.load(tmp_path / "checkpoint", with_optimizer=True)
    assert torch.equal(other.owned_shards()[0].tensor, policy.owned_shards()[0].tensor)


def test_a_folder_without_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="holds no checkpoint"):
        FakePolicy(vocab_size=3).load(tmp_path, with_optimizer=True)


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    FakePolicy(vocab_size=4).save(tmp_path, with_optimizer=True)
    with pytest.raises(InvalidInputError, match=r"shape \(4, 4\), \(3, 3\) is wanted"):
        FakePolicy(vocab_size=3).load(tmp_path, with_optimizer=False)


def test_the_reference_stays_while_the_policy_learns() -> None:
    policy = FakePolicy(vocab_size=3)
    with pytest.raises(StateConflictError, match="none was kept"):
        policy.reference_logprobs([_batch()])
    policy.keep_reference()
    kept = policy.statistics([_batch()])[0].logprobs
    _update(policy, [_batch()])
    assert torch.equal(policy.reference_logprobs([_batch()])[0], kept)
    assert not torch.equal(policy.statistics([_batch()])[0].logprobs, kept)

"""What the trainer ranks of the tests do. Results are dicts of plain values and tensors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from services.common.errors import FurlongError
from services.trainer.batch import PackedBatch
from services.trainer.policy import LossFunction, LossSums, OwnedShard, TokenStatistics, UpdateFigures
from tests.integration.megatron_ranks.batches import make_batch, take_sequences, weighted_loss, without_labels
from tests.integration.megatron_ranks.hub_reference import (
    draft_losses,
    draft_weights,
    fuse_experts,
    label_logprobs,
    reference_model,
)
from tests.integration.megatron_ranks.reassembly import Shards, reassemble, relative_difference
from tests.integration.megatron_ranks.tiny_hub_model import AIR_LIKE, TINY

if TYPE_CHECKING:
    # Importing it loads megatron, which must come after the shim.
    from services.trainer.megatron.policy import MegatronPolicy

LENGTHS = (21, 9, 14, 6, 30, 21, 7, 12)
TEMPERATURE = 0.8
# Above the norms of every case but `clip`, about 5.5 at most.
CLIP_NORM = 8.0
Result = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Rank:
    policy: MegatronPolicy
    model_dir: Path
    out: Path
    """Where this launch writes."""
    saved: Path
    """Checkpoint of another launch."""


def start_over(rank: Rank) -> None:
    """The hub's weights and a fresh optimizer."""
    from services.trainer.megatron.hub_loading import load_hub_weights

    load_hub_weights(rank.policy.owned_shards(), rank.model_dir)
    rank.policy.reset_optimizer()


def step(rank: Rank) -> Result:
    """Gradients and figures of one update, then the figures of three more."""
    policy, batch = rank.policy, _own_share(rank.policy, make_batch(LENGTHS, seed=1))
    figures = _update(policy, [batch], lr=0.0)
    gradients = gradients_of(policy)
    statistics = _statistics(policy, batch)
    later = [_plain(_update(policy, [batch], lr=1e-3)) for _ in range(3)]
    return {
        "figures": _plain(figures),
        "gradients": gradients,
        "statistics": (statistics.logprobs, statistics.entropies),
        "later": later,
    }


def weights(rank: Rank) -> Result:
    return {"weights": weights_of(rank.policy)}


def parity(rank: Rank) -> Result:
    """Largest differences to the reference, of values and of gradients."""
    variant = TINY if "tiny" in rank.model_dir.name else AIR_LIKE
    hub = load_file(rank.model_dir / "model.safetensors")
    model, batch = reference_model(hub, variant), make_batch(LENGTHS, seed=2)
    logprobs, entropies = label_logprobs(model, batch, temperature=TEMPERATURE)
    found = _statistics(rank.policy, batch)
    mask = batch.loss_mask
    (-(logprobs * batch.advantages)[mask].sum() / _COUNT).backward()
    draft = {name: tensor.requires_grad_() for name, tensor in draft_weights(hub).items()}
    losses = draft_losses(model, draft, batch)
    mtp_loss = torch.stack(losses).mean()
    (0.1 * mtp_loss).backward()

    figures = _update(rank.policy, [batch], lr=0.0)
    gradients = reassemble([gradients_of(rank.policy)])
    trunk, found_draft = fuse_experts(gradients), draft_weights(gradients)
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    wanted_draft = {name: tensor.grad for name, tensor in draft.items() if tensor.grad is not None}
    return {
        "logprobs": float((found.logprobs - logprobs.detach())[mask].abs().max()),
        "entropies": float((found.entropies - entropies).abs().max()),
        "gradients": {name: relative_difference(trunk[name], gradient) for name, gradient in wanted.items()},
        "mtp_loss": (figures.mtp_loss, float(mtp_loss.detach())),
        "mtp_gradients": {n: relative_difference(found_draft[n], tensor) for n, tensor in wanted_draft.items()},
        "num_mtp_labels": len(losses),
    }


def split(rank: Rank) -> Result:
    """Gradients of one micro-batch, of the same in three, and with a zero-weight one added."""
    policy, batch = rank.policy, _own_share(rank.policy, make_batch(LENGTHS, seed=3))
    indices = range(batch.num_sequences)
    parts = [take_sequences(batch, indices[start::3]) for start in range(3)]
    empty = without_labels(make_batch((4, 3), seed=4))
    results: Result = {}
    for name, batches in {"whole": [batch], "parts": parts, "padded": [empty, *parts]}.items():
        figures = _update(policy, batches, lr=0.0)
        results[name] = (_plain(figures), gradients_of(policy))
    return results


def idle_replica(rank: Rank) -> Result:
    """Rank 0 has all the labels, rank 1 has a zero-weight batch: the gradients are those of rank 0 alone."""
    batch = make_batch(LENGTHS, seed=1)
    share = batch if rank.policy.data_parallel_rank == 0 else without_labels(batch)
    figures = _update(rank.policy, [share], lr=0.0, count=_COUNT)
    return {"figures": _plain(figures), "gradients": gradients_of(rank.policy)}


def detachment(rank: Rank) -> Result:
    """The trunk's and the MTP layer's gradients when only one of the two losses says anything."""
    policy, batch = rank.policy, make_batch(LENGTHS, seed=5)
    _update(policy, [batch], lr=0.0, loss_function=_no_loss)
    only_mtp = gradients_of(policy)
    figures = _update(policy, [batch], lr=0.0)
    return {"only_mtp": only_mtp, "both": gradients_of(policy), "figures": _plain(figures)}


def clip(rank: Rank) -> Result:
    """Gradients that the optimizer used on ten times the loss of `step`, which is above the clip norm."""
    batch = _own_share(rank.policy, make_batch(LENGTHS, seed=1))
    figures = _update(rank.policy, [batch], lr=0.0, count=_COUNT / 10)
    return {"figures": _plain(figures), "gradients": gradients_of(rank.policy)}


def resume(rank: Rank) -> Result:
    """Weights after four steps in one go, and after a save, a detour and a load in the middle; from step 0 too."""
    policy, batch = rank.policy, _own_share(rank.policy, make_batch(LENGTHS, seed=7))
    start, middle = rank.out / "start", rank.out / "middle"
    policy.save(start, with_optimizer=True)
    _steps(policy, batch, 2)
    policy.save(middle, with_optimizer=True)
    _steps(policy, batch, 2)
    straight = weights_of(policy)
    policy.load(middle, with_optimizer=True)
    _steps(policy, batch, 2)
    resumed = weights_of(policy)
    policy.load(start, with_optimizer=True)
    _steps(policy, batch, 4)
    restarted = weights_of(policy)
    policy.load(middle, with_optimizer=False)
    _steps(policy, batch, 2)
    forgetful = weights_of(policy)
    return {
        "straight": straight,
        "resumed": resumed,
        "restarted": restarted,
        "forgetful": forgetful,
        "num_children": len(multiprocessing.active_children()),
        "step_counts": [float(count) for count in _step_counts(policy)],
    }


def save(rank: Rank) -> Result:
    """Two steps, a checkpoint, and the weights before and after one more step."""
    batch = _own_share(rank.policy, make_batch(LENGTHS, seed=8))
    _steps(rank.policy, batch, 2)
    rank.policy.save(rank.out / "checkpoint", with_optimizer=True)
    saved = weights_of(rank.policy)
    _steps(rank.policy, batch, 1)
    return {"saved": saved, "next": weights_of(rank.policy)}


def load(rank: Rank) -> Result:
    """The weights of the checkpoint beside the output folder, and after one more step."""
    folder = rank.saved
    error = error_of(lambda: rank.policy.load(folder, with_optimizer=True))
    if error != "no error":
        rank.policy.load(folder, with_optimizer=False)
    loaded = weights_of(rank.policy)
    _steps(rank.policy, _own_share(rank.policy, make_batch(LENGTHS, seed=8)), 1)
    return {"error": error, "saved": loaded, "next": weights_of(rank.policy)}


def model_alone(rank: Rank) -> Result:
    """The error of asking for an optimizer that was not saved, and the weights that were."""
    batch, folder = _own_share(rank.policy, make_batch(LENGTHS, seed=13)), rank.out / "model-alone"
    _steps(rank.policy, batch, 1)
    rank.policy.save(folder, with_optimizer=False)
    saved = weights_of(rank.policy)
    _steps(rank.policy, batch, 1)
    error = error_of(lambda: rank.policy.load(folder, with_optimizer=True))
    rank.policy.load(folder, with_optimizer=False)
    return {"error": error, "saved": saved, "loaded": weights_of(rank.policy)}


def broken_checkpoint(rank: Rank) -> Result:
    """Messages of loading folders that hold no complete checkpoint."""
    policy = rank.policy
    policy.save(rank.out / "whole", with_optimizer=True)
    (rank.out / "whole" / "complete").rename(rank.out / "elsewhere")
    before = weights_of(policy)
    absent, incomplete = rank.out / "none", rank.out / "whole"
    errors = [
        error_of(lambda: policy.load(absent, with_optimizer=True)),
        error_of(lambda: policy.load(incomplete, with_optimizer=True)),
    ]
    return {"errors": errors, "before": before, "after": weights_of(policy)}


def non_finite(rank: Rank) -> Result:
    """The error of an infinite loss, and the weights around it."""
    batch = make_batch(LENGTHS, seed=9)
    before = weights_of(rank.policy)
    error = error_of(lambda: _update(rank.policy, [batch], lr=1e-2, loss_function=_infinite_loss))
    return {"error": error, "before": before, "after": weights_of(rank.policy)}


def reference_between_steps(rank: Rank) -> Result:
    """Four steps in one go, and the same with a reference kept before them and asked after each."""
    policy, batch = rank.policy, _own_share(rank.policy, make_batch(LENGTHS, seed=11))
    _steps(policy, batch, 4)
    straight, straight_counts = weights_of(policy), _step_counts(policy)
    start_over(rank)
    policy.keep_reference()
    kept = _statistics(policy, batch).logprobs
    asked = []
    for _ in range(4):
        _steps(policy, batch, 1)
        asked.append(policy.reference_logprobs([batch.to(policy.device)])[0].cpu())
    return {
        "straight": straight,
        "interrupted": weights_of(policy),
        "step_counts": ([float(count) for count in straight_counts], [float(count) for count in _step_counts(policy)]),
        "kept": kept,
        "asked": asked,
        "moved": _statistics(policy, batch).logprobs,
    }


def messages(rank: Rank) -> Result:
    """Bytes and numbers between the ranks."""
    policy = rank.policy
    index = policy.data_parallel_rank
    gathered = policy.gather_bytes(bytes([index]) * index)
    return {
        "broadcast": policy.broadcast_bytes(b"\x00order" if index == 0 else None).hex(),
        "empty": policy.broadcast_bytes(b"" if index == 0 else None).hex(),
        "gathered": None if gathered is None else [part.hex() for part in gathered],
        "sums": policy.sum_over_ranks({"b": 0.1 + index, "a": 1.0}),
        "no_sums": policy.sum_over_ranks({}),
    }


def learn(rank: Rank) -> Result:
    """Cross-entropies of policy and draft before and after 30 steps on one batch."""
    batch = make_batch(LENGTHS, seed=10)
    figures = [_update(rank.policy, [batch], lr=1e-2, loss_function=_cross_entropy) for _ in range(30)]
    return {"first": _plain(figures[0]), "last": _plain(figures[-1])}


CASES: dict[str, Callable[[Rank], Result]] = {
    case.__name__: case
    for case in (
        *(step, weights, parity, split, idle_replica, detachment, clip),
        *(resume, save, load, model_alone, broken_checkpoint, non_finite, reference_between_steps, messages, learn),
    )
}

_COUNT = float(make_batch(LENGTHS, seed=1).num_loss_tokens)


def _update(
    policy: MegatronPolicy,
    batches: Sequence[PackedBatch],
    *,
    lr: float,
    count: float = _COUNT,
    loss_function: LossFunction = weighted_loss,
) -> UpdateFigures:
    moved = [batch.to(policy.device) for batch in batches]
    return policy.update(moved, loss_function, global_count=count, lr=lr, mtp_lr=lr, weight_decay=0.01)


def _statistics(policy: MegatronPolicy, batch: PackedBatch) -> TokenStatistics:
    (found,) = policy.statistics([batch.to(policy.device)])
    return TokenStatistics(logprobs=found.logprobs.cpu(), entropies=found.entropies.cpu())


def _steps(policy: MegatronPolicy, batch: PackedBatch, number: int) -> None:
    for _ in range(number):
        _update(policy, [batch], lr=1e-2)


def _no_loss(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    return LossSums(loss_sum=torch.where(batch.loss_mask, statistics.logprobs, 0.0).sum() * 0.0, metric_sums={})


def _infinite_loss(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    return LossSums(loss_sum=statistics.logprobs.sum() * float("inf"), metric_sums={})


def _cross_entropy(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    loss = -torch.where(batch.loss_mask, statistics.logprobs, 0.0).sum()
    return LossSums(loss_sum=loss, metric_sums={"loss": float(loss.detach())})


def _own_share(policy: MegatronPolicy, batch: PackedBatch) -> PackedBatch:
    indices = range(batch.num_sequences)[policy.data_parallel_rank :: policy.data_parallel_size]
    return take_sequences(batch, indices)


def _shards(shards: Sequence[OwnedShard]) -> Shards:
    return [(o.shard.tensor, o.shard.tensor_shape, o.shard.box.starts, o.tensor.to("cpu", copy=True)) for o in shards]


def weights_of(policy: MegatronPolicy) -> Shards:
    return _shards(policy.owned_shards())


def gradients_of(policy: MegatronPolicy) -> Shards:
    from services.trainer.megatron.hub_loading import owned_shards

    named = [
        (name, tensor.main_grad)
        for name, tensor in policy._model.named_tensors()
        if isinstance(tensor, torch.nn.Parameter)
    ]
    return _shards(owned_shards(named, model=policy._shape, layout=policy._layout))


def _step_counts(policy: MegatronPolicy) -> list[torch.Tensor]:
    return [moments["step"] for optimizer in policy._optimizers for _, moments in optimizer.megatron.state.items()]


def _plain(figures: UpdateFigures) -> Result:
    return {
        "gradient_norm": figures.gradient_norm,
        "mtp_loss": figures.mtp_loss,
        "metric_sums": dict(figures.metric_sums),
    }


def error_of(action: Callable[[], object]) -> str:
    try:
        action()
    except FurlongError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

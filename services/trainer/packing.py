"""Forms micro-batches: which samples go to which rank, step and micro-batch, and their tensors. Pure."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from services.common.errors import InvalidInputError
from services.trainer.batch import PackedBatch
from services.trainer.sequence_cost import BY_TOKENS, SequenceCost


@dataclass(frozen=True, kw_only=True)
class TrainingSequence:
    """One sample as the trainer sees it.

    Legend: P prompt tokens, T response tokens.
    """

    prompt_token_ids: tuple[int, ...]
    """[P] at least one."""
    response_token_ids: tuple[int, ...]
    """[T] may be empty."""
    engine_logprobs: tuple[float, ...]
    """[T] under the engine; may hold NaN, which the loss rejects and counts."""
    advantage: float
    """The same for every response token."""

    @property
    def num_tokens(self) -> int:
        """P + T."""
        return len(self.prompt_token_ids) + len(self.response_token_ids)


def split_updates(num_samples: int, *, updates_per_step: int, seed: str) -> list[list[int]]:
    """The sample indices of each optimizer step: a random permutation cut into shares that differ by one at most.

    Steps left without a sample are left out, so there may be fewer than updates_per_step. The samples of a group may
    go to different steps: their advantages are already taken, and no loss looks at siblings, so a group kept whole
    would only leave each step with fewer prompts.

    Args:
        seed: whatever makes the round unique within the run and its history, such as "<run seed>/<step>".
    """
    order = list(range(num_samples))
    random.Random(seed).shuffle(order)
    bounds = [num_samples * share // updates_per_step for share in range(updates_per_step + 1)]
    shares = [order[start:end] for start, end in pairwise(bounds)]
    return [share for share in shares if share]


def plan_micro_batches(
    lengths: Sequence[int], *, max_tokens: int, data_parallel_size: int, cost: SequenceCost = BY_TOKENS
) -> list[list[list[int]]]:
    """For each rank its micro-batches, each a list of indices into lengths; all ranks have as many, at least one.

    Every index is in exactly one micro-batch, and none exceeds max_tokens, whatever the cost. The costs of two ranks
    differ by at most the cost of the heaviest micro-batch less that of the lightest; balanced by tokens, by at most
    the longest sequence. A rank that is short of work has empty micro-batches, at the end.

    Raises:
        InvalidInputError: a sequence is longer than max_tokens or has no token.
    """
    _check_lengths(lengths, max_tokens)
    costs = [cost.of(length) for length in lengths]
    # Filling the lightest bin, longest sequence first, keeps bins even; one more round of bins until all fit.
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    num_rounds = max(1, -(-sum(lengths) // (max_tokens * data_parallel_size)))
    while True:
        num_bins = num_rounds * data_parallel_size
        bins = _fill(order, lengths, costs, max_tokens=max_tokens, num_bins=num_bins)
        if bins is not None:
            return _deal(bins, costs, data_parallel_size)
        num_rounds += 1


def pack(sequences: Sequence[TrainingSequence], indices: Sequence[int]) -> PackedBatch:
    """The sequences at the indices end to end, sample_indices being the indices.

    Without any index the batch is one masked token in one sequence that belongs to no sample: it takes part in every
    collective and weighs nothing.
    """
    rows = [_align(sequences[index]) for index in indices] or [_ZERO_WEIGHT]
    lengths = [len(row.token_ids) for row in rows]
    return PackedBatch(
        token_ids=torch.tensor([value for row in rows for value in row.token_ids], dtype=torch.int64),
        labels=torch.tensor([value for row in rows for value in row.labels], dtype=torch.int64),
        position_ids=torch.tensor([value for length in lengths for value in range(length)], dtype=torch.int64),
        cu_seqlens=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        loss_mask=torch.tensor([value for row in rows for value in row.loss_mask], dtype=torch.bool),
        advantages=torch.tensor([value for row in rows for value in row.advantages], dtype=torch.float32),
        engine_logprobs=torch.tensor([v for row in rows for v in row.engine_logprobs], dtype=torch.float32),
        sample_indices=tuple(indices),
    )


@dataclass(frozen=True, kw_only=True)
class _AlignedSequence:
    token_ids: list[int]
    labels: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    engine_logprobs: list[float]


_ZERO_WEIGHT = _AlignedSequence(token_ids=[0], labels=[0], loss_mask=[False], advantages=[0.0], engine_logprobs=[0.0])


def _align(sequence: TrainingSequence) -> _AlignedSequence:
    """Moves everything that belongs to a token to the position before it, which predicts it."""
    tokens = [*sequence.prompt_token_ids, *sequence.response_token_ids]
    num_before, num_response = len(sequence.prompt_token_ids) - 1, len(sequence.response_token_ids)
    return _AlignedSequence(
        token_ids=tokens,
        labels=[*[0] * num_before, *sequence.response_token_ids, 0],
        loss_mask=[*[False] * num_before, *[True] * num_response, False],
        advantages=[*[0.0] * num_before, *[sequence.advantage] * num_response, 0.0],
        engine_logprobs=[*[0.0] * num_before, *sequence.engine_logprobs, 0.0],
    )


def _check_lengths(lengths: Sequence[int], max_tokens: int) -> None:
    for index, length in enumerate(lengths):
        if not 1 <= length <= max_tokens:
            raise InvalidInputError(
                f"sample {index} has {length} tokens; wanted 1 to trainer.max_tokens_per_rank {max_tokens}; raise the "
                "cap or lower data.max_prompt_tokens and rollout.sampling.max_new_tokens"
            )


def _fill(
    order: Sequence[int], lengths: Sequence[int], costs: Sequence[float], *, max_tokens: int, num_bins: int
) -> list[list[int]] | None:
    """Each sequence in turn into the lightest bin that has room; None when one has none."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    num_tokens = [0] * num_bins
    heap = [(0.0, bin_index) for bin_index in range(num_bins)]
    for index in order:
        full = []
        while heap and num_tokens[heap[0][1]] + lengths[index] > max_tokens:
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        cost, bin_index = heap[0]
        heapq.heapreplace(heap, (cost + costs[index], bin_index))
        for item in full:
            heapq.heappush(heap, item)
        num_tokens[bin_index] += lengths[index]
        bins[bin_index].append(index)
    return bins


def _deal(bins: Sequence[list[int]], costs: Sequence[float], num_ranks: int) -> list[list[list[int]]]:
    """As many bins to each rank; in each round the heaviest goes to the rank that has the least."""
    filled = sorted(((sum(costs[index] for index in members), members) for members in bins), reverse=True)
    ranks: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    totals = [0.0] * num_ranks
    for start in range(0, len(filled), num_ranks):
        by_total = sorted(range(num_ranks), key=lambda rank: totals[rank])
        for rank, (cost, members) in zip(by_total, filled[start : start + num_ranks], strict=True):
            ranks[rank].append(members)
            totals[rank] += cost
    return ranks

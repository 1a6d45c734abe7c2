"""A policy whose log-probabilities follow from a token's id, its place and one weight, whatever it is packed with."""

from collections.abc import Sequence

import torch

from services.trainer.batch import PackedBatch
from services.trainer.policy import TokenStatistics


class ScriptedPolicy:
    """What the preparation of updates needs of a policy, on one rank."""

    def __init__(self, weight: float, *, reference_weight: float = 0.02) -> None:
        self.weight = torch.tensor(weight, dtype=torch.float64, requires_grad=True)
        self._reference_weight = reference_weight

    def statistics_of(self, batch: PackedBatch) -> TokenStatistics:
        """With gradient to the weight."""
        return TokenStatistics(logprobs=_logprobs(self.weight, batch), entropies=self.weight * batch.labels.double())

    def statistics(self, batches: Sequence[PackedBatch]) -> list[TokenStatistics]:
        """Without gradient."""
        with torch.no_grad():
            return [self.statistics_of(batch) for batch in batches]

    def reference_logprobs(self, batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Under the reference's weight."""
        return [_logprobs(torch.tensor(self._reference_weight, dtype=torch.float64), batch) for batch in batches]

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        """The values: there is one rank."""
        return dict(values)


def _logprobs(weight: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    return -0.3 - weight * (batch.labels.double() + 0.1 * batch.position_ids)

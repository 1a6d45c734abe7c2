"""What a sequence costs to train on, by which micro-batches and ranks are balanced. Pure."""

from dataclasses import dataclass

from services.trainer.megatron.hub_config import ModelShape


@dataclass(frozen=True, kw_only=True)
class SequenceCost:
    """The cost of n tokens in one sequence: per_token * n + per_token_squared * n * n, in any unit."""

    per_token: float
    """Above 0."""
    per_token_squared: float = 0.0
    """0 or more."""

    def of(self, num_tokens: int) -> float:
        """The cost of one sequence."""
        return self.per_token * num_tokens + self.per_token_squared * num_tokens * num_tokens


BY_TOKENS = SequenceCost(per_token=1.0)
"""Every token costs the same."""


def forward_work(shape: ModelShape) -> SequenceCost:
    """Multiply-adds of a forward pass; backward and recomputation multiply both parts by the same number.

    Linear in the tokens are all matrices that a token passes: attention projections, feed-forward layers (of the
    routed experts the top_k chosen), router, head. Quadratic is causal attention: a token meets half of the sequence
    on average, once for the scores and once for the values. Norms, rotary positions, softmax and the embedding look-up
    are left out: they are less than a hundredth. The MTP layer counts as one more layer with its own head.
    """
    hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
    attention = hidden * (2 * heads + 2 * shape.num_kv_groups * shape.head_dim)
    dense = 3 * hidden * shape.ffn_size
    experts = hidden * (3 * (shape.top_k * shape.expert_ffn_size + shape.shared_ffn_size) + shape.num_experts)
    head = hidden * shape.vocab_size
    num_sparse = shape.num_layers - shape.num_dense_layers
    trunk = shape.num_layers * attention + shape.num_dense_layers * dense + num_sparse * experts + head
    mtp = shape.num_mtp_layers * (2 * hidden * hidden + attention + experts + head)
    return SequenceCost(
        per_token=float(trunk + mtp),
        per_token_squared=float((shape.num_layers + shape.num_mtp_layers) * heads),
    )

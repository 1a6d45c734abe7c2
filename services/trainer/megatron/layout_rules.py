"""Which layouts of ranks the trainer can run a model in. Pure: an impossible one is refused before anything starts."""

from services.common.config.trainer import ParallelConfig
from services.common.errors import ConfigError
from services.trainer.megatron.hub_config import ModelShape


def check_layout(shape: ModelShape, parallel: ParallelConfig, *, num_ranks: int) -> None:
    """Returns when the trainer can run the model in this layout.

    Raises:
        ConfigError: it cannot; the message names the value and the remedy.
    """
    if parallel.pp > 1:
        raise ConfigError(f"trainer.parallel.pp is {parallel.pp}, but only 1 is supported; set trainer.parallel.pp=1")
    if parallel.cp > 1:
        raise ConfigError(f"trainer.parallel.cp is {parallel.cp}, but only 1 is supported; set trainer.parallel.cp=1")
    if parallel.ep == 1 and parallel.expert_tp != parallel.tp:
        # megatron-core 0.16.1 does not sum expert gradients over tp in this layout, in silence.
        raise ConfigError(
            f"trainer.parallel has tp {parallel.tp}, ep 1 and etp {parallel.expert_tp}, which trains experts with "
            f"wrong gradients; set trainer.parallel.etp={parallel.tp}"
        )
    if num_ranks % parallel.tp or num_ranks % (parallel.ep * parallel.expert_tp):
        raise ConfigError(
            f"trainer.ranks is {num_ranks}, but tp {parallel.tp} and ep {parallel.ep} x etp {parallel.expert_tp} must "
            "both divide it; change trainer.ranks or trainer.parallel"
        )
    _check_divisible(shape.num_kv_groups, parallel.tp, "num_key_value_heads", "tp")
    _check_divisible(shape.ffn_size, parallel.tp, "intermediate_size", "tp")
    _check_divisible(shape.shared_ffn_size, parallel.tp, "the shared experts' width", "tp")
    _check_divisible(shape.expert_ffn_size, parallel.expert_tp, "moe_intermediate_size", "etp")
    _check_divisible(shape.num_experts, parallel.ep, "n_routed_experts", "ep")


def padded_vocab_size(shape: ModelShape, parallel: ParallelConfig) -> int:
    """Rows of embedding and head with what is added so that tp divides them."""
    return -(-shape.vocab_size // parallel.tp) * parallel.tp


def _check_divisible(value: int, ranks: int, name: str, axis: str) -> None:
    if value % ranks:
        raise ConfigError(
            f"trainer.parallel.{axis} is {ranks}, but {name} {value} is no multiple of it; choose a divisor of {value}"
        )

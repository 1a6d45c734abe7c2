"""The arguments SGLang's engine is started with, from the recipe."""

from services.common.config.rollout import EngineConfig
from services.common.errors import ConfigError
from services.rollout.sglang_weight_loader import LOADER_NAME

ArgumentValue = str | int | float | bool | list[str]

# Version string before the first commit; no request is sent under it.
NO_VERSION = "none"
# Longer prompts are prefilled in parts of this size, so that decoding requests wait for no more than one part.
MAX_PREFILL_TOKENS = 4096


def engine_arguments(
    config: EngineConfig, *, model_path: str, dtype: str, seed: int, log_level: str
) -> dict[str, ArgumentValue]:
    """Keyword arguments of sglang's Engine 0.5.20.

    Parameters start as random numbers: weights come by commit only. The model's folder needs config.json alone.

    Raises:
        ConfigError: a device this service cannot commit weights to.
    """
    if config.device != "cpu":
        raise ConfigError(f"rollout.engine.device is {config.device!r}, wanted cpu; set rollout.engine.device=cpu")
    arguments: dict[str, ArgumentValue] = {
        "model_path": model_path,
        "dtype": dtype,
        "device": config.device,
        "random_seed": seed,
        "tp_size": config.tp,
        "context_length": config.context_length,
        "max_running_requests": config.max_running_requests,
        "max_total_tokens": config.max_total_tokens,
        "chunked_prefill_size": MAX_PREFILL_TOKENS,
        "load_format": "dummy",
        "custom_weight_loader": [LOADER_NAME],
        "weight_version": NO_VERSION,
        "skip_tokenizer_init": True,
        "skip_server_warmup": True,
        "grammar_backend": "none",
        "sampling_backend": "pytorch",
        "log_level": log_level,
    }
    return arguments | _cpu_arguments() | (_speculation_arguments(config) if config.speculation.enabled else {})


def _cpu_arguments() -> dict[str, ArgumentValue]:
    return {
        "attention_backend": "torch_native",
        # Unlike the name above these are not reset without AMX; their two operators come from the stand-in sgl_kernel.
        "prefill_attention_backend": "intel_amx",
        "decode_attention_backend": "intel_amx",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "mem_fraction_static": 0.1,
    }


def _speculation_arguments(config: EngineConfig) -> dict[str, ArgumentValue]:
    speculation = config.speculation
    return {
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": speculation.num_steps,
        "speculative_eagle_topk": speculation.topk,
        "speculative_num_draft_tokens": speculation.num_draft_tokens,
        "speculative_draft_attention_backend": "intel_amx",
    }

"""The start of SGLang as the recipe wants it."""

import pytest

from services.common.config.rollout import EngineConfig, SpeculationConfig
from services.common.errors import ConfigError
from services.rollout.sglang_arguments import ArgumentValue, engine_arguments


def arguments(config: EngineConfig) -> dict[str, ArgumentValue]:
    return engine_arguments(config, model_path="/models/tiny", dtype="float32", seed=3, log_level="error")


def test_recipe_reaches_the_engine() -> None:
    started = arguments(EngineConfig(tp=2, max_running_requests=7, context_length=99, max_total_tokens=800))
    assert started["tp_size"] == 2
    assert started["max_running_requests"] == 7
    assert (started["context_length"], started["max_total_tokens"]) == (99, 800)
    assert (started["random_seed"], started["dtype"]) == (3, "float32")
    assert started["load_format"] == "dummy"
    assert started["custom_weight_loader"] == ["services.rollout.sglang_weight_loader.execute_weight_command"]


def test_speculation_is_passed_on_or_left_out() -> None:
    deep = SpeculationConfig(num_steps=3, topk=2, num_draft_tokens=5)
    started = arguments(EngineConfig(speculation=deep))
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    assert [started[name] for name in names] == [3, 2, 5]
    plain = arguments(EngineConfig(speculation=SpeculationConfig(enabled=False)))
    assert not [name for name in plain if name.startswith("speculative")]


def test_other_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.engine\.device is 'cuda', wanted cpu"):
        arguments(EngineConfig(device="cuda"))

"""A tiny GLM-4.5-shaped hub checkpoint, written by transformers, with an MTP layer beside it."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

NUM_LAYERS = 2
DRAFT = f"model.layers.{NUM_LAYERS}."


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs between the 355B model and Air."""

    has_qk_norm: bool
    has_qkv_bias: bool
    routed_scaling: float


TINY = Variant(has_qk_norm=True, has_qkv_bias=False, routed_scaling=1.0)
AIR_LIKE = Variant(has_qk_norm=False, has_qkv_bias=True, routed_scaling=2.5)


def hub_config(variant: Variant) -> Glm4MoeConfig:
    config = Glm4MoeConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        moe_intermediate_size=64,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_routed_experts=8,
        routed_scaling_factor=variant.routed_scaling,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        use_qk_norm=variant.has_qk_norm,
        attention_bias=variant.has_qkv_bias,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        max_position_embeddings=256,
    )
    config._attn_implementation = "eager"
    return config


def write_hub_model(folder: Path, variant: Variant, *, seed: int = 7) -> None:
    """Writes config.json and model.safetensors with random weights, biases of the router included."""
    folder.mkdir(parents=True, exist_ok=True)
    model = Glm4MoeForCausalLM(hub_config(variant)).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(_random(name, tensor.shape, generator))
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    last = f"model.layers.{NUM_LAYERS - 1}."
    for name in [name for name in weights if name.startswith(last)]:
        weights[DRAFT + name.removeprefix(last)] = _random(name, weights[name].shape, generator)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        weights[f"{DRAFT}{name}.weight"] = _random("norm", (64,), generator)
    weights[f"{DRAFT}eh_proj.weight"] = _random("eh_proj", (64, 128), generator)
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * 0.1 + (1.0 if "norm" in name else 0.0)

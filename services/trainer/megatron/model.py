"""Builds the policy's two parts on this rank: the trunk (a GPTModel) and the MTP block, each behind Megatron's DDP.

They are separate modules so that each has its own gradient buffers and optimizer, and so that the MTP loss cannot
reach the trunk except through a tensor that is detached on purpose.
"""

from dataclasses import dataclass

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from services.common.config.trainer import ParallelConfig
from services.trainer.megatron.hub_config import ModelShape
from services.trainer.megatron.layout_rules import padded_vocab_size
from services.trainer.megatron.model_config import transformer_config
from services.trainer.megatron.modules import GroupedExperts, RmsNorm, RowAttention


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """The trunk or the MTP block."""

    name: str
    """"trunk" or "mtp"."""
    prefix: str
    """What stands before its parameters' names in the whole model."""
    module: MegatronModule
    """The module."""
    gradients: DistributedDataParallel
    """Its gradient buffers."""

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Its parameters, then its expert biases, under their names in the whole model."""
        biases = ((name, tensor) for name, tensor in self.module.named_buffers() if name.endswith(".expert_bias"))
        return [(self.prefix + name, tensor) for name, tensor in (*self.module.named_parameters(), *biases)]


@dataclass(frozen=True, kw_only=True)
class RankModel:
    """The model on this rank."""

    trunk: GPTModel
    """Embedding, decoder and output head."""
    mtp: MultiTokenPredictionBlock | None
    """The MTP block; None when the model has none."""
    parts: tuple[ModelPart, ...]
    """The same with their gradient buffers, trunk first."""

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Every parameter and every expert bias under its Megatron name, in a fixed order."""
        return [named for part in self.parts for named in part.named_tensors()]

    def trunk_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The same of the trunk alone."""
        return self.parts[0].named_tensors()


def build_model(shape: ModelShape, parallel: ParallelConfig, *, dtype: torch.dtype, device: torch.device) -> RankModel:
    """The model with uninitialised weights on the device. Collective; the process groups exist already."""
    config = transformer_config(shape, parallel, dtype=dtype, num_mtp_layers=0)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    spec.layer_norm = RmsNorm
    for layer in spec.layer_specs:
        _use_own_modules(layer.submodules)
    trunk = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=padded_vocab_size(shape, parallel),
        max_sequence_length=shape.max_positions,
        # Without it Megatron gathers the whole vocabulary on every rank.
        parallel_output=True,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        rotary_percent=shape.rotary_share,
        rotary_base=shape.rotary_base,
    )
    parts = [ModelPart(name="trunk", prefix="", module=trunk, gradients=_gradient_buffers(config, trunk, device))]
    mtp = None
    if shape.num_mtp_layers:
        config = transformer_config(shape, parallel, dtype=dtype, num_mtp_layers=shape.num_mtp_layers)
        mtp = _build_mtp(config, spec)
        parts.append(ModelPart(name="mtp", prefix="mtp.", module=mtp, gradients=_gradient_buffers(config, mtp, device)))
    return RankModel(trunk=trunk, mtp=mtp, parts=tuple(parts))


def _build_mtp(config: TransformerConfig, decoder: TransformerBlockSubmodules) -> MultiTokenPredictionBlock:
    spec = get_gpt_mtp_block_spec(config, decoder, use_transformer_engine=False)
    for layer in spec.submodules.layer_specs if isinstance(spec, ModuleSpec) else spec.layer_specs:
        parts = layer.submodules
        parts.enorm = parts.hnorm = parts.layer_norm = RmsNorm
    return MultiTokenPredictionBlock(config=config, spec=spec)


def _use_own_modules(layer: TransformerLayerSubmodules) -> None:
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    attention = layer.self_attention.submodules
    attention.core_attention = RowAttention
    if attention.q_layernorm is not IdentityOp:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    experts = getattr(layer.mlp.submodules, "experts", None)
    if experts is not None:
        experts.module = GroupedExperts


def _gradient_buffers(
    config: TransformerConfig, module: torch.nn.Module, device: torch.device
) -> DistributedDataParallel:
    # Before its gradients are hooked: Megatron makes the router's weight on the host and moves it when it is first
    # used, which would leave its hook behind, and the router untrained without a word.
    module.to(device)
    buffers = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False)
    return DistributedDataParallel(config, buffers, module)

"""The MTP layer's own forward pass and loss; nothing of it reaches the trunk, the embedding or the output head.

Megatron's own MTP loss trains the trunk too and divides by each micro-batch's count, so it is not used. At position t
the layer sees the trunk's hidden state of t and the embedding of token t+1, and predicts token t+2 (arXiv 2412.19437,
section 2.2), which is what the engine's draft does.
Legend as in forward.py.
"""

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.layers import linear_with_frozen_weight
from megatron.core.tensor_parallel.mappings import (
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock

from services.trainer.batch import PackedBatch
from services.trainer.megatron.forward import PackedInputs
from services.trainer.megatron.packed_rows import next_in_sequence
from services.trainer.megatron.vocabulary import label_statistics


def count_mtp_labels(batch: PackedBatch) -> int:
    """Positions whose next two labels both count."""
    return int(_mtp_mask(batch.loss_mask, batch.cu_seqlens).sum())


def mtp_loss_sum(
    mtp: MultiTokenPredictionBlock,
    trunk: GPTModel,
    hidden: torch.Tensor,
    inputs: PackedInputs,
    *,
    vocab_size: int,
) -> torch.Tensor:
    """[] sum of the cross-entropies of token t+2 over the positions that count_mtp_labels counts.

    Args:
        hidden: [S, 1, H] the trunk's hidden states; detached here.
    """
    mask = _mtp_mask(inputs.loss_mask, inputs.cu_seqlens)
    labels = next_in_sequence(inputs.labels, inputs.cu_seqlens)
    logprobs, _ = label_statistics(
        _draft_logits(mtp, trunk, hidden.detach(), inputs).squeeze(1),
        labels,
        temperature=1.0,
        vocab_size=vocab_size,
        group=parallel_state.get_tensor_model_parallel_group(),
    )
    return -torch.where(mask, logprobs, 0.0).sum()


def _mtp_mask(loss_mask: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    return loss_mask & next_in_sequence(loss_mask, cu_seqlens)


def _draft_logits(
    mtp: MultiTokenPredictionBlock, trunk: GPTModel, hidden: torch.Tensor, inputs: PackedInputs
) -> torch.Tensor:
    layer = mtp.layers[0]
    group = parallel_state.get_tensor_model_parallel_group()
    next_ids = next_in_sequence(inputs.token_ids[0], inputs.cu_seqlens)[None]
    with torch.no_grad():
        embedded = trunk.embedding(input_ids=next_ids, position_ids=inputs.position_ids)
    mixed, _ = layer.eh_proj(torch.cat([layer.enorm(embedded), layer.hnorm(hidden)], dim=-1))
    if group.size() > 1:
        mixed = scatter_to_sequence_parallel_region(gather_from_tensor_model_parallel_region(mixed))
    output, _ = layer.transformer_layer(hidden_states=mixed, attention_mask=inputs.rows, rotary_pos_emb=inputs.rotary)
    logits: torch.Tensor = linear_with_frozen_weight(
        layer.final_layernorm(output),
        trunk.output_layer.weight.detach(),
        bias=None,
        gradient_accumulation_fusion=False,
        allreduce_dgrad=False,
        sequence_parallel=group.size() > 1,
        tp_group=group,
    )
    return logits

"""The trunk's forward pass over a packed micro-batch, up to log-probabilities and entropies of its labels.

Legend: T tokens of the micro-batch, P >= T the same padded to a multiple of tp, S = P / tp tokens of a
sequence-parallel share, H hidden size.
"""

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel

from services.trainer.batch import PackedBatch
from services.trainer.megatron.packed_rows import pad_offsets, pad_pack, row_index
from services.trainer.megatron.vocabulary import label_statistics
from services.trainer.policy import TokenStatistics


@dataclass(frozen=True, kw_only=True)
class PackedInputs:
    """A micro-batch as the layers take it, on the rank's device."""

    num_tokens: int
    """T."""
    token_ids: torch.Tensor
    """[1, P] int64."""
    labels: torch.Tensor
    """[P] int64; 0 where masked and in the padding."""
    loss_mask: torch.Tensor
    """[P] bool; False in the padding."""
    position_ids: torch.Tensor
    """[1, P] int64."""
    cu_seqlens: torch.Tensor
    """[N + 1] int64 offsets; the padding is a sequence of its own."""
    rows: torch.Tensor
    """[N, L] int64 row index."""
    rotary: torch.Tensor
    """[P, 1, 1, rotated dimensions] angles."""


def pack_inputs(batch: PackedBatch, trunk: GPTModel, *, tp_size: int, device: torch.device) -> PackedInputs:
    """The inputs of a micro-batch; padding keeps every tensor-parallel share equally long and never empty."""
    num_tokens = batch.num_tokens
    padded = max(-(-num_tokens // tp_size), 1) * tp_size
    position_ids = pad_pack(batch.position_ids, padded).to(device)
    cu_seqlens = pad_offsets(batch.cu_seqlens.long(), padded).to(device)
    longest = int(position_ids.max()) + 1
    return PackedInputs(
        num_tokens=num_tokens,
        token_ids=pad_pack(batch.token_ids, padded).to(device)[None],
        labels=pad_pack(batch.labels, padded).to(device),
        loss_mask=pad_pack(batch.loss_mask, padded).to(device),
        position_ids=position_ids[None],
        cu_seqlens=cu_seqlens,
        rows=row_index(cu_seqlens),
        rotary=trunk.rotary_pos_emb.get_emb(longest)[position_ids],
    )


def trunk_hidden(trunk: GPTModel, inputs: PackedInputs) -> torch.Tensor:
    """[S, 1, H] hidden states after the final norm."""
    hidden: torch.Tensor = trunk.decoder(
        hidden_states=trunk.embedding(input_ids=inputs.token_ids, position_ids=inputs.position_ids),
        # RowAttention reads it as the row index.
        attention_mask=inputs.rows,
        rotary_pos_emb=inputs.rotary,
    )
    return hidden


def trunk_statistics(
    trunk: GPTModel, hidden: torch.Tensor, inputs: PackedInputs, *, temperature: float, vocab_size: int
) -> TokenStatistics:
    """[T] log-probabilities and entropies, with gradient when the hidden states carry it."""
    logits, _ = trunk.output_layer(hidden)
    logprobs, entropies = label_statistics(
        logits.squeeze(1),
        inputs.labels,
        temperature=temperature,
        vocab_size=vocab_size,
        group=parallel_state.get_tensor_model_parallel_group(),
    )
    return TokenStatistics(logprobs=logprobs[: inputs.num_tokens], entropies=entropies[: inputs.num_tokens])

"""The slow reference: transformers, one sequence at a time, with a draft layer put together by hand."""

from itertools import pairwise

import torch
from torch.nn import functional
from transformers import Glm4MoeForCausalLM
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer

from services.trainer.batch import PackedBatch
from tests.integration.megatron_ranks.tiny_hub_model import DRAFT, NUM_LAYERS, Variant, hub_config

Weights = dict[str, torch.Tensor]


def reference_model(weights: Weights, variant: Variant) -> Glm4MoeForCausalLM:
    """transformers' model with these weights.

    Built from its config: from_pretrained leaves the rotary frequencies unset in a process with the shim.
    """
    model = Glm4MoeForCausalLM(hub_config(variant)).float()
    trunk = {name: tensor for name, tensor in weights.items() if not name.startswith(DRAFT)}
    model.load_state_dict(fuse_experts(trunk))
    return model.eval()


def sequences(batch: PackedBatch) -> list[slice]:
    offsets = batch.cu_seqlens.tolist()
    return [slice(start, end) for start, end in pairwise(offsets)]


def label_logprobs(
    model: Glm4MoeForCausalLM, batch: PackedBatch, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[T] log-probabilities with gradient and [T] entropies."""
    logprobs, entropies = [], []
    for part in sequences(batch):
        table = torch.log_softmax(model(batch.token_ids[part][None]).logits[0].float() / temperature, dim=-1)
        logprobs.append(table.gather(1, batch.labels[part][:, None]).squeeze(1))
        entropies.append(-(table.exp() * table).sum(-1).detach())
    return torch.cat(logprobs), torch.cat(entropies)


def draft_losses(model: Glm4MoeForCausalLM, draft: Weights, batch: PackedBatch) -> list[torch.Tensor]:
    """Cross-entropy of token t+2 at every position whose next two labels count.

    Args:
        draft: the draft layer's weights under their hub names without prefix, with gradient where wanted.
    """
    losses = []
    for part in sequences(batch):
        ids, mask = batch.token_ids[part], batch.loss_mask[part]
        with torch.no_grad():
            hidden = model.model(ids[None]).last_hidden_state[0]
            following = model.model.embed_tokens(torch.cat([ids[1:], ids[:1]]))
        logits = _draft_logits(model, draft, hidden, following)
        for t in range(len(ids) - 2):
            if mask[t] and mask[t + 1]:
                losses.append(functional.cross_entropy(logits[t][None], ids[t + 2][None]))
    return losses


def _draft_logits(
    model: Glm4MoeForCausalLM, draft: Weights, hidden: torch.Tensor, following: torch.Tensor
) -> torch.Tensor:
    mixed = torch.cat([_norm(following, draft["enorm.weight"]), _norm(hidden, draft["hnorm.weight"])], dim=-1)
    mixed = (mixed @ draft["eh_proj.weight"].T)[None]
    positions = torch.arange(len(hidden))[None]
    causal = torch.full((len(hidden), len(hidden)), float("-inf")).triu(1)[None, None]
    layer = Glm4MoeDecoderLayer(model.config, NUM_LAYERS - 1).eval()
    output = torch.func.functional_call(
        layer,
        _fused(draft),
        (mixed,),
        {
            "attention_mask": causal,
            "position_ids": positions,
            "position_embeddings": model.model.rotary_emb(mixed, positions),
        },
    )
    output = output[0] if isinstance(output, tuple) else output
    return _norm(output.reshape(hidden.shape), draft["shared_head.norm.weight"]) @ model.lm_head.weight.detach().T


def _norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(values, weight.shape, weight, 1e-5)


def fuse_experts(weights: Weights) -> Weights:
    """Weights under transformers 5's names in memory, where a layer's experts are one tensor."""
    fused = {name: tensor for name, tensor in weights.items() if ".experts." not in name}
    for prefix in {name.partition(".experts.")[0] for name in weights if ".experts." in name}:
        experts = [f"{prefix}.experts.{index}." for index in range(8)]
        fused[f"{prefix}.experts.gate_up_proj"] = torch.stack(
            [torch.cat([weights[f"{e}gate_proj.weight"], weights[f"{e}up_proj.weight"]]) for e in experts]
        )
        fused[f"{prefix}.experts.down_proj"] = torch.stack([weights[f"{e}down_proj.weight"] for e in experts])
    return fused


def _fused(draft: Weights) -> Weights:
    own = ("enorm", "hnorm", "eh_proj", "shared_head")
    return fuse_experts({name: tensor for name, tensor in draft.items() if name.partition(".")[0] not in own})


def draft_weights(weights: Weights) -> Weights:
    """The draft layer's weights without the prefix."""
    return {name.removeprefix(DRAFT): tensor for name, tensor in weights.items() if name.startswith(DRAFT)}

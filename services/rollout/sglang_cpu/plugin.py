"""SGLang plugin (entry-point group sglang.srt.plugins): what SGLang 0.5.20 lacks for GLM-4.5 with EAGLE on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sglang.srt.constrained.base_grammar_backend import GrammarMask
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    Verdict = tuple[Tensor, Tensor, Tensor]


def register() -> None:
    """Registers the hooks on a CPU engine; does nothing on any other device."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.utils import is_cpu

    if not is_cpu():
        return
    HookRegistry.register(
        "sglang.srt.models.glm4_moe.Glm4MoeForCausalLM.set_embed_and_head", share_embeddings, HookType.REPLACE
    )
    HookRegistry.register("sglang.srt.speculative.eagle_utils.eagle_sample", sample_drafts, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.model_executor.forward_batch_info.compute_position_torch", compute_positions, HookType.REPLACE
    )


def share_embeddings(model: nn.Module, embed: nn.Parameter, head: nn.Parameter) -> None:
    """Gives a draft model the target's embedding and output head, without the CUDA synchronisation SGLang ends with."""
    for name, parameter in (("model.embed_tokens", embed), ("lm_head", head)):
        model.get_submodule(name).register_parameter("weight", parameter)


def compute_positions(extend_prefix_lens: Tensor, extend_seq_lens: Tensor) -> tuple[Tensor, Tensor]:
    """(positions [Q] of all tokens to extend, start [B] of each request among them).

    SGLang's own loops over the requests in Python, a tenth of a decode step of 256 requests.
    """
    lengths = extend_seq_lens.long()
    starts = lengths.cumsum(0) - lengths
    shift = (extend_prefix_lens.long() - starts).repeat_interleave(lengths)
    return torch.arange(shift.numel()) + shift, starts.to(extend_seq_lens.dtype)


def sample_drafts(
    original: Callable[..., Verdict],
    verify_input: EagleVerifyInput,
    batch: ScheduleBatch,
    logits_output: LogitsProcessorOutput,
    grammar_mask: GrammarMask | None = None,
    uno_target_max_top_k: int | None = None,
) -> Verdict:
    """Verifies draft tokens at the requests' temperatures.

    SGLang's own branch for CPUs takes the most likely token whatever the temperature; the branch for GPUs samples, with
    kernels that the stand-in sgl_kernel has.
    """
    from sglang.srt.speculative import eagle_utils

    arguments = (verify_input, batch, logits_output, grammar_mask, uno_target_max_top_k)
    if batch.sampling_info.is_all_greedy:
        return original(*arguments)
    eagle_utils._is_cpu = False
    try:
        return original(*arguments)
    finally:
        eagle_utils._is_cpu = True

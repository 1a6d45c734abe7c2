"""Makes megatron-core 0.16.1 run on a torch without CUDA; with CUDA only the repairs that are needed there too.

The changes are global to the process, so a trainer rank is a process of its own, and tests that start a policy do so in
a subprocess. `install` comes before the first import of megatron, `repair_megatron` right after it. Each change names
what calls it; all can go when megatron-core takes a device argument (https://github.com/NVIDIA/Megatron-LM).
"""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_FACTORIES = ("tensor", "empty", "zeros", "ones", "full", "arange", "empty_like", "zeros_like", "ones_like")
_HOUSEKEEPING = ("synchronize", "empty_cache", "set_device", "set_stream")


class _NoStream:
    """Stands for a CUDA stream, event or nvtx module: everything may be called and nothing happens."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., "_NoStream"]:
        return lambda *_args, **_options: _NoStream()

    def __enter__(self) -> "_NoStream":
        return self

    def __exit__(self, *_error: object) -> None:
        pass


def is_needed() -> bool:
    """Whether this process has no CUDA device."""
    return not torch.cuda.is_available()


def install() -> None:
    """Puts CPU stand-ins where megatron calls CUDA. Calling it twice changes nothing more."""
    if not is_needed() or hasattr(torch, "_furlong_cpu_shim"):
        return
    # megatron.core.jit decorates with torch.compile: no compiler here, and 2 to 4 seconds less import.
    _replace(torch, {"_furlong_cpu_shim": True, "compile": _no_compile})
    # These speak of a GPU's generator and streams; on a CPU there is nothing to heed.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*CUDA_DEVICE_MAX_CONNECTIONS")
    _replace_device_calls()
    _replace_random_calls()
    _replace_tensor_calls()


def repair_megatron() -> None:
    """Fills the names that megatron-core 0.16.1 leaves wrong without Transformer Engine or without CUDA."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        # Undefined without Transformer Engine, on GPUs too, and read by the router.
        moe_utils.te_general_gemm = None
    if not is_needed():
        return
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    # These two bound the CUDA functions by name when megatron was imported.
    random._set_cuda_rng_state = _set_random_state
    token_dispatcher.maybe_move_tensor_to_cpu = _as_numpy_if_asked


def _replace(owner: object, stand_ins: dict[str, object]) -> None:
    for name, stand_in in stand_ins.items():
        setattr(owner, name, stand_in)


def _no_compile(function: Callable[P, R] | None = None, **_options: object) -> object:
    return function if function is not None else lambda inner: inner


def _replace_device_calls() -> None:
    device, stream = torch.device("cpu"), _NoStream()
    # One function object a name: torch._dynamo keys its rules by object.
    _replace(torch.cuda, {name: _ignoring() for name in _HOUSEKEEPING})
    _replace(
        torch.cuda,
        {
            "current_device": lambda: device,
            "Stream": _NoStream,
            "Event": _NoStream,
            "current_stream": lambda *_args, **_options: stream,
            "stream": lambda _: contextlib.nullcontext(),
            "nvtx": _NoStream(),
        },
    )


def _ignoring() -> Callable[..., None]:
    return lambda *_args, **_options: None


def _replace_random_calls() -> None:
    """The tracker's CUDA generator is the CPU generator."""
    for module in (torch.cuda, torch.cuda.random):
        _replace(
            module,
            {
                "get_rng_state": lambda *_args, **_options: torch.get_rng_state(),
                "set_rng_state": _set_random_state,
                "manual_seed": torch.default_generator.manual_seed,
            },
        )


def _set_random_state(state: torch.Tensor, *_args: object, **_options: object) -> None:
    torch.set_rng_state(state)


def _replace_tensor_calls() -> None:
    """.cuda(), device="cuda" in factories, and the type strings that the optimizers compare."""
    original: Callable[..., str] = torch.Tensor.type

    def type_as_cuda(self: torch.Tensor, *args: object, **options: object) -> object:
        if args or options:
            return original(self, *args, **options)
        return original(self).replace("torch.", "torch.cuda.", 1)

    _replace(torch, {name: _on_cpu(getattr(torch, name)) for name in _FACTORIES})
    _replace(torch.Tensor, {"cuda": lambda self, *_args, **_options: self, "type": type_as_cuda})


def _on_cpu(factory: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(factory)
    def create(*args: P.args, **options: P.kwargs) -> R:
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        options.pop("pin_memory", None)
        return factory(*args, **options)

    return create


def _as_numpy_if_asked(value: object, as_numpy: bool = False, record_stream: bool = False) -> object:
    return value.numpy() if as_numpy and isinstance(value, torch.Tensor) else value

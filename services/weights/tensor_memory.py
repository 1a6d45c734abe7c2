"""Tensors as views of plain memory, and the digest of their bytes."""

import torch
import xxhash

from services.common.errors import InvalidInputError
from services.weights.transfer import DTYPE_BYTES

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def tensor_view(memory: memoryview, *, offset_bytes: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """The bytes at an offset of writable memory as a tensor that shares them.

    Raises:
        InvalidInputError: unknown dtype, or fewer bytes than the shape needs.
    """
    if dtype not in _DTYPES:
        raise InvalidInputError(f"dtype {dtype!r} is unknown; known are {', '.join(_DTYPES)}")
    num_elements = torch.Size(shape).numel()
    end = offset_bytes + num_elements * DTYPE_BYTES[dtype]
    if not 0 <= offset_bytes <= end <= len(memory):
        raise InvalidInputError(f"bytes {offset_bytes}:{end} are outside memory of {len(memory)} bytes; plan again")
    flat = torch.frombuffer(memory, dtype=_DTYPES[dtype], count=num_elements, offset=offset_bytes)
    return flat.view(shape)


def digest_bytes(memory: memoryview) -> str:
    """xxh3-64 of the bytes as 16 hex digits."""
    return str(xxhash.xxh3_64_hexdigest(memory))


def digest_tensor(tensor: torch.Tensor) -> str:
    """xxh3-64 of a tensor's elements in row-major order, as 16 hex digits."""
    flat = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    return digest_bytes(flat.numpy().data)

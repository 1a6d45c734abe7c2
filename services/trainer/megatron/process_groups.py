"""Starts and ends torch.distributed and Megatron's groups, and moves plain bytes and numbers between ranks."""

import ipaddress
import os
from dataclasses import dataclass
from datetime import timedelta

import torch
from megatron.core import parallel_state, tensor_parallel
from torch import distributed

from services.common.config.trainer import ParallelConfig
from services.trainer.megatron.hub_mapping import RankLayout


@dataclass(frozen=True, kw_only=True)
class RankAddress:
    """Which trainer process this is and where the ranks meet."""

    rank: int
    """This rank."""
    world: int
    """Number of ranks."""
    master_address: str
    """Host of rank 0."""
    master_port: int
    """Free TCP port on that host, the same for all ranks."""


# Long enough for a checkpoint of a large model on a slow disk, short enough to end a run whose peer is gone.
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)


def start_process_groups(address: RankAddress, parallel: ParallelConfig, *, device: torch.device, seed: int) -> None:
    """Joins all ranks. Collective: returns when every rank has called it."""
    if device.type == "cpu" and _is_loopback(address.master_address):
        # Gloo has no argument for its interface. Without it the ranks' sockets listen on the host's outer address.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{address.master_address}:{address.master_port}",
        rank=address.rank,
        world_size=address.world,
        timeout=_COLLECTIVE_TIMEOUT,
        # NCCL guesses its device otherwise, and warns at every barrier that it does.
        device_id=device if device.type == "cuda" else None,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        context_parallel_size=parallel.cp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.expert_tp,
        create_gloo_process_groups=False,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def stop_process_groups() -> None:
    """Leaves all groups; another policy may start in this process afterwards."""
    parallel_state.destroy_model_parallel()
    distributed.destroy_process_group()


def rank_layout() -> RankLayout:
    """This rank's place in the started layout."""
    return RankLayout(
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        tp_size=parallel_state.get_tensor_model_parallel_world_size(),
        ep_rank=parallel_state.get_expert_model_parallel_rank(),
        ep_size=parallel_state.get_expert_model_parallel_world_size(),
        etp_rank=parallel_state.get_expert_tensor_parallel_rank(),
        etp_size=parallel_state.get_expert_tensor_parallel_world_size(),
    )


def sum_over_replicas(values: dict[str, float], *, device: torch.device) -> dict[str, float]:
    """Collective. The sums over the data-parallel replicas, each counted once; every rank gives the same keys."""
    names = sorted(values)
    sums = torch.tensor([values[name] for name in names], dtype=torch.float64, device=device)
    distributed.all_reduce(sums, group=parallel_state.get_data_parallel_group())
    return dict(zip(names, sums.tolist(), strict=True))


def broadcast_bytes(data: bytes | None, *, device: torch.device) -> bytes:
    """Collective. Rank 0's bytes on every rank; the others pass None."""
    size = torch.tensor([len(data or b"")], dtype=torch.int64, device=device)
    distributed.broadcast(size, src=0)
    content = _as_tensor(data or b"", int(size), device)
    distributed.broadcast(content, src=0)
    return _as_bytes(content)


def gather_bytes(data: bytes, *, device: torch.device) -> list[bytes] | None:
    """Collective. Every rank's bytes in rank order on rank 0; None elsewhere."""
    size = torch.tensor([len(data)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(size) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, size)
    longest = max(int(size) for size in sizes)
    content = _as_tensor(data, longest, device)
    # NCCL has no gather of unequal parts, so each part is as long as the longest.
    is_target = distributed.get_rank() == 0
    parts = [torch.zeros_like(content) for _ in sizes] if is_target else None
    distributed.gather(content, parts, dst=0)
    if parts is None:
        return None
    return [_as_bytes(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _as_tensor(data: bytes, num_bytes: int, device: torch.device) -> torch.Tensor:
    content = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    if data:
        content[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    return content


def _as_bytes(content: torch.Tensor) -> bytes:
    return content.cpu().numpy().tobytes()

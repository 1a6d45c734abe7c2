"""Megatron's torch_dist checkpoint format, written by the calling process itself."""

from pathlib import Path

from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save


class InProcessWriter(SaveShardedStrategy):  # type: ignore[misc]
    """Saves without other processes.

    Megatron's own strategy spawns a manager, which needs a guarded main module, and forks writers, which is unsafe
    beside gRPC's threads and hangs for ever when psutil is missing. Any torch_dist loader reads what is written.
    """

    def __init__(self) -> None:
        super().__init__("torch_dist", 1)

    @property
    def can_handle_sharded_objects(self) -> bool:
        """True: objects go into the same files."""
        return True

    def check_backend_compatibility(self, loaded_version: object) -> None:
        """Nothing: it only writes."""

    def check_version_compatibility(self, loaded_version: object) -> None:
        """Nothing: it only writes."""

    def save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: str | Path) -> None:
        """Collective. Writes one file a rank and the metadata."""
        keyed, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        save(
            mcore_to_pyt_state_dict(keyed, False),
            storage_writer=FileSystemWriter(checkpoint_dir, thread_count=1),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )

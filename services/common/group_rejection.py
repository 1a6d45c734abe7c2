"""Sends an accepted group back to be generated again, safely over a crash at any point."""

from services.common.prompt_ledger import PromptLedger
from services.common.sample_queue import QueuedGroup, SampleQueue


def reject_group(queued: QueuedGroup, *, queue: SampleQueue, ledger: PromptLedger, reason: str) -> bool:
    """Removes the entry and reopens its prompt, so that the same group id will be generated and pushed again.

    The order matters. The id is freed before the prompt is, so the new push cannot be taken for a repetition; the
    entry goes last, so a crash before that delivers it again and the rejection is repeated. When the new group has
    already arrived by then, the ledger is left alone. False when no round loses the group by it.

    Raises:
        StateConflictError: another consumer has opened the queue.
        UnavailableError: the server cannot be reached.
    """
    was_accepted = queue.release(queued) and ledger.reject(
        round_=queued.group.round, position=queued.group.position, reason=reason
    )
    queue.acknowledge([queued.entry_id])
    return was_accepted

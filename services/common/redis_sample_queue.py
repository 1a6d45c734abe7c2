"""The sample queue in a Redis stream: one protobuf entry per group, one consumer group, no trimming."""

import time

import redis

from services.common.conversions import group_from_bytes, group_to_bytes
from services.common.errors import UnavailableError
from services.common.records import Group
from services.common.redis_connection import RedisReply, RedisScript
from services.common.sample_queue import QueuedGroup, check_group_of_run, fenced_error, full_queue_error

_CONSUMER_GROUP = "trainer"
_SCAN_START = "0-0"
# A claim script runs in about 0.1 ms, so this costs no measurable load and no step notices the delay.
_POLL_SECONDS = 0.02


class RedisSampleQueue:
    """A SampleQueue in Redis. Pushing is safe from many threads; one thread claims and acknowledges.

    Keys, all below furlong:<run id>:queue: are `stream` (the entries), `ids:<round>` (group id to entry id, kept
    after the acknowledgement), `finished` (rounds below it are forgotten) and `epoch` (of the one consumer).
    """

    def __init__(self, client: redis.Redis, *, run_id: str, max_groups: int) -> None:
        """A queue that refuses pushes while it holds max_groups unacknowledged groups."""
        self._client = client
        self._run_id = run_id
        self._max_groups = max_groups
        prefix = f"furlong:{run_id}:queue:"
        self._stream, self._epoch_key = f"{prefix}stream", f"{prefix}epoch"
        self._ids_prefix, self._finished = f"{prefix}ids:", f"{prefix}finished"
        self._push = RedisScript(client, "queue_push")
        self._open = RedisScript(client, "queue_open")
        self._claim = RedisScript(client, "queue_claim")
        self._acknowledge = RedisScript(client, "queue_acknowledge")
        self._release = RedisScript(client, "queue_release")
        self._forget = RedisScript(client, "queue_forget")
        self._epoch: int | None = None
        self._scan_cursor = _SCAN_START
        self._delivered: set[str] = set()

    def push(self, group: Group) -> bool:
        """See SampleQueue.push."""
        check_group_of_run(group, run_id=self._run_id)
        reply = self._push.run(
            keys=[self._stream, self._ids_of(group), self._finished],
            arguments=[group.group_id, group.round, group_to_bytes(group), self._max_groups],
        )
        if reply == -1:
            raise full_queue_error(max_groups=self._max_groups)
        return reply == 1

    def claim(self, *, max_groups: int, timeout_seconds: float) -> list[QueuedGroup]:
        """See SampleQueue.claim."""
        self._open_once()
        deadline = time.monotonic() + timeout_seconds
        while True:
            was_scan = self._scan_cursor != ""
            fresh = self._claim_over_short_loss(max_groups)
            if fresh:
                return fresh
            if was_scan:
                continue
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                return []
            time.sleep(min(_POLL_SECONDS, remaining_seconds))

    def acknowledge(self, entry_ids: list[str]) -> None:
        """See SampleQueue.acknowledge."""
        epoch = "" if self._epoch is None else self._epoch
        reply = self._acknowledge.run(
            keys=[self._stream, self._epoch_key], arguments=[epoch, _CONSUMER_GROUP, *entry_ids]
        )
        if reply == 0:
            raise fenced_error()
        self._delivered.difference_update(entry_ids)

    def release(self, queued: QueuedGroup) -> bool:
        """See SampleQueue.release."""
        reply = self._release.run(
            keys=[self._ids_of(queued.group), self._finished],
            arguments=[queued.group.group_id, queued.entry_id, queued.group.round],
        )
        return reply == 1

    def forget_rounds_before(self, round_: int) -> None:
        """See SampleQueue.forget_rounds_before."""
        self._forget.run(keys=[self._finished], arguments=[round_, self._ids_prefix])

    def depth(self) -> int:
        """See SampleQueue.depth."""
        try:
            return int(self._client.xlen(self._stream))
        except redis.RedisError as error:
            raise UnavailableError(f"Redis does not tell the queue's depth: {error}; check the server") from error

    def _ids_of(self, group: Group) -> str:
        return f"{self._ids_prefix}{group.round}"

    def _open_once(self) -> None:
        if self._epoch is None:
            reply = self._open.run(keys=[self._stream, self._epoch_key], arguments=[_CONSUMER_GROUP])
            assert isinstance(reply, int)
            self._epoch = reply

    def _claim_over_short_loss(self, max_groups: int) -> list[QueuedGroup]:
        for pause_seconds in (0.1, 0.3, 0.9):
            try:
                return self._claim_now(max_groups)
            except UnavailableError:
                time.sleep(pause_seconds)
        return self._claim_now(max_groups)

    def _claim_now(self, max_groups: int) -> list[QueuedGroup]:
        """Entries that are ready. First pages through all that is pending, then reads what is new."""
        assert self._epoch is not None
        try:
            reply = self._claim.run_once(
                keys=[self._stream, self._epoch_key],
                arguments=[self._epoch, _CONSUMER_GROUP, _CONSUMER_GROUP, max_groups, self._scan_cursor],
            )
        except UnavailableError:
            # Entries of a lost reply are pending now; scan again so that they are delivered after all.
            self._scan_cursor = _SCAN_START
            raise
        assert isinstance(reply, list)
        if reply[0] == 0:
            raise fenced_error()
        cursor, flat = reply[1], reply[2]
        assert isinstance(cursor, bytes)
        assert isinstance(flat, list)
        self._scan_cursor = cursor.decode()
        fresh = [entry for entry in _read_entries(flat) if entry.entry_id not in self._delivered]
        self._delivered.update(entry.entry_id for entry in fresh)
        return fresh


def _read_entries(flat: list[RedisReply]) -> list[QueuedGroup]:
    entries = []
    for entry_id, data in zip(flat[::2], flat[1::2], strict=True):
        assert isinstance(entry_id, bytes)
        assert isinstance(data, bytes)
        entries.append(QueuedGroup(entry_id=entry_id.decode(), group=group_from_bytes(data)))
    return entries

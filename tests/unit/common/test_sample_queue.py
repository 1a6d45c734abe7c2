"""One set of rules for both sample queues, the second of them over a real Valkey."""

import threading
import time

import pytest
import redis

from services.common.errors import InvalidInputError, OverloadedError, StateConflictError
from services.common.memory_sample_queue import MemoryQueueState, MemorySampleQueue
from services.common.records import FinishReason, Group, Sample, VersionSpan, group_id
from services.common.redis_sample_queue import RedisSampleQueue


@pytest.fixture(params=["memory", "redis"])
def open_queue(request, run_id):
    """A function that opens the run's queue, again and again."""
    if request.param == "memory":
        state = MemoryQueueState()
        return lambda max_groups=100: MemorySampleQueue(run_id=run_id, max_groups=max_groups, state=state)
    client = request.getfixturevalue("redis_client")
    return lambda max_groups=100: RedisSampleQueue(client, run_id=run_id, max_groups=max_groups)


@pytest.fixture
def make_group(run_id):
    def make(position, round_=0):
        name = group_id(run_id=run_id, round_=round_, position=position)
        sample = Sample(
            sample_id=f"{name}/0",
            response_token_ids=(5, 7),
            logprobs=(-0.5, -0.25),
            version_spans=(VersionSpan(step=3, num_tokens=2),),
            reward=1.0,
            finish_reason=FinishReason.STOP,
            num_verify_steps=1,
        )
        return Group(group_id=name, round=round_, position=position, prompt_token_ids=(1, 2), samples=(sample,))

    return make


def claim_all(queue, max_groups=100):
    return queue.claim(max_groups=max_groups, timeout_seconds=0)


def positions(claimed):
    return [queued.group.position for queued in claimed]


def test_groups_come_out_whole_and_in_order(open_queue, make_group):
    queue = open_queue()
    groups = [make_group(position) for position in (4, 2, 9)]
    assert [queue.push(group) for group in groups] == [True, True, True]
    assert [queued.group for queued in claim_all(queue)] == groups


def test_claim_gives_at_most_max_groups(open_queue, make_group):
    queue = open_queue()
    for position in range(5):
        queue.push(make_group(position))
    assert [positions(claim_all(queue, 2)) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_second_push_of_a_group_id_keeps_one_entry(open_queue, make_group):
    queue = open_queue()
    assert queue.push(make_group(0))
    assert not queue.push(make_group(0))
    assert not open_queue().push(make_group(0))
    assert queue.depth() == 1
    assert positions(claim_all(queue)) == [0]


def test_acknowledged_group_id_stays_known(open_queue, make_group):
    queue = open_queue()
    queue.push(make_group(0))
    queue.acknowledge([queued.entry_id for queued in claim_all(queue)])
    assert queue.depth() == 0
    assert not queue.push(make_group(0))
    assert claim_all(open_queue()) == []


def test_group_of_another_run_is_refused(open_queue, make_group):
    stranger = Group(group_id="other/0/0", round=0, position=0, prompt_token_ids=(1,), samples=())
    with pytest.raises(InvalidInputError, match="group id is 'other/0/0'"):
        open_queue().push(stranger)


def test_full_queue_refuses_until_an_acknowledgement_and_loses_nothing(open_queue, make_group):
    queue = open_queue(max_groups=2)
    queue.push(make_group(0))
    queue.push(make_group(1))
    with pytest.raises(OverloadedError, match="holds 2 unacknowledged groups") as caught:
        queue.push(make_group(2))
    assert caught.value.retry_after_seconds == 1.0
    first, second = claim_all(queue)
    with pytest.raises(OverloadedError):
        queue.push(make_group(2))
    queue.acknowledge([first.entry_id])
    assert queue.push(make_group(2))
    assert positions([second, *claim_all(queue)]) == [1, 2]


def test_repeated_push_to_a_full_queue_is_known_rather_than_refused(open_queue, make_group):
    queue = open_queue(max_groups=1)
    queue.push(make_group(0))
    assert not queue.push(make_group(0))


def test_reopened_consumer_gets_the_unacknowledged_first_then_the_new(open_queue, make_group):
    queue = open_queue()
    for position in range(5):
        queue.push(make_group(position))
    claimed = claim_all(queue, 4)
    queue.acknowledge([claimed[1].entry_id])
    reopened = open_queue()
    reopened.push(make_group(5))
    batches = [positions(claim_all(reopened, 2)) for _ in range(4)]
    assert [position for batch in batches for position in batch] == [0, 2, 3, 4, 5]
    assert all(len(batch) <= 2 for batch in batches)
    assert claim_all(reopened) == []


def test_redelivery_repeats_until_the_acknowledgement(open_queue, make_group):
    open_queue().push(make_group(0))
    for _ in range(3):
        assert positions(claim_all(open_queue())) == [0]


def test_later_consumer_fences_the_earlier(open_queue, make_group):
    earlier, later = open_queue(), open_queue()
    earlier.push(make_group(0))
    [queued] = claim_all(earlier)
    assert positions(claim_all(later)) == [0]
    with pytest.raises(StateConflictError, match="another consumer has opened"):
        claim_all(earlier)
    with pytest.raises(StateConflictError, match="another consumer has opened"):
        earlier.acknowledge([queued.entry_id])
    assert later.depth() == 1
    assert earlier.push(make_group(1)), "a fenced consumer may still push"


def test_pushing_object_does_not_fence_the_consumer(open_queue, make_group):
    consumer, producer = open_queue(), open_queue()
    claim_all(consumer)
    producer.push(make_group(0))
    assert producer.depth() == 1
    assert positions(claim_all(consumer)) == [0]


def test_unknown_entry_ids_are_ignored(open_queue, make_group):
    queue = open_queue()
    queue.push(make_group(0))
    queue.acknowledge(["77-0", "78-1"])
    queue.acknowledge([])
    assert queue.depth() == 1


def test_claim_waits_for_a_push(open_queue, make_group):
    queue = open_queue()
    claim_all(queue)
    timer = threading.Timer(0.2, lambda: open_queue().push(make_group(7)))
    started = time.monotonic()
    timer.start()
    assert positions(queue.claim(max_groups=1, timeout_seconds=20)) == [7]
    assert 0.15 < time.monotonic() - started < 10
    timer.join()


def test_claim_ends_after_its_timeout(open_queue):
    started = time.monotonic()
    assert open_queue().claim(max_groups=1, timeout_seconds=0.2) == []
    assert 0.19 < time.monotonic() - started < 10


def test_released_group_id_can_be_pushed_again(open_queue, make_group):
    queue = open_queue()
    queue.push(make_group(0))
    [old] = claim_all(queue)
    assert queue.release(old)
    assert queue.release(old), "releasing twice is the same as once"
    assert queue.push(make_group(0))
    queue.acknowledge([old.entry_id])
    assert not queue.push(make_group(0))
    assert positions(claim_all(queue)) == [0]
    assert queue.depth() == 1


def test_release_of_a_superseded_entry_keeps_the_newer_one_known(open_queue, make_group):
    queue = open_queue()
    queue.push(make_group(0))
    [old] = claim_all(queue)
    queue.release(old)
    queue.push(make_group(0))
    assert not queue.release(old)
    assert not queue.push(make_group(0))


def test_finished_rounds_stay_closed_when_their_ids_are_forgotten(open_queue, make_group):
    queue = open_queue()
    for round_ in range(3):
        queue.push(make_group(round_, round_=round_))
    first, second, _ = claim_all(queue)
    queue.acknowledge([first.entry_id, second.entry_id])
    queue.forget_rounds_before(2)
    queue.forget_rounds_before(1)
    assert not queue.push(make_group(0, round_=0))
    assert not queue.push(make_group(1, round_=1)), "the bound does not go back"
    assert not queue.push(make_group(2, round_=2)), "the open round is still known"
    assert queue.push(make_group(3, round_=2))


def test_memory_of_finished_rounds_is_freed(redis_client, run_id, make_group):
    queue = RedisSampleQueue(redis_client, run_id=run_id, max_groups=10)
    for round_ in range(4):
        queue.push(make_group(round_, round_=round_))
        queue.acknowledge([queued.entry_id for queued in claim_all(queue)])
    queue.forget_rounds_before(3)
    ids = {key.decode() for key in redis_client.scan_iter(f"furlong:{run_id}:queue:ids:*")}
    assert ids == {f"furlong:{run_id}:queue:ids:3"}


def test_many_producers_lose_and_repeat_nothing(open_queue, make_group):
    def produce(first):
        queue = open_queue()
        for position in range(first, 60, 2):  # each position is pushed by two of the four threads
            queue.push(make_group(position))

    threads = [threading.Thread(target=produce, args=(first,)) for first in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    consumer, seen = open_queue(), []
    while len(seen) < 60:
        claimed = consumer.claim(max_groups=7, timeout_seconds=10)
        assert claimed
        seen += positions(claimed)
        consumer.acknowledge([queued.entry_id for queued in claimed])
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(60))
    assert consumer.depth() == 0
    assert claim_all(consumer) == []


def test_entries_of_a_lost_reply_are_delivered_after_all(redis_client, run_id, make_group):
    """The script ran, the connection broke before the reply: the entries are pending, not new."""
    queue = RedisSampleQueue(redis_client, run_id=run_id, max_groups=10)
    claim_all(queue)
    queue.push(make_group(0))
    lossy = _LoseOneReply(redis_client)
    reader = RedisSampleQueue(lossy, run_id=run_id, max_groups=10)
    claim_all(reader)
    queue.push(make_group(1))
    lossy.is_armed = True
    assert positions(claim_all(reader)) == [1]
    assert lossy.num_lost == 1


class _LoseOneReply:
    """A client whose next claim runs and then loses its reply, once."""

    def __init__(self, client):
        self._client, self.is_armed, self.num_lost = client, False, 0

    def register_script(self, text):
        return _LossyScript(self, self._client.register_script(text))


class _LossyScript:
    def __init__(self, client, script):
        self._client, self._script = client, script

    def __call__(self, keys, args):
        reply = self._script(keys=keys, args=args)
        if self._client.is_armed:
            self._client.is_armed, self._client.num_lost = False, 1
            raise redis.ConnectionError("reply lost")
        return reply

"""Many clients, two replicas, and a worker that is killed again and again: every sample is answered exactly once.

FURLONG_LOAD_SAMPLES sets the number of samples (default 4000), FURLONG_LOAD_KILL_SECONDS the time between two kills.
"""

import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from furlong.reward.v1 import reward_pb2, reward_pb2_grpc

from services.common.channels import call, open_balanced_channel
from services.common.errors import OverloadedError
from services.common.security import NO_CREDENTIALS
from tests.contract.reward_servers import SERVICE, reward_server

logger = logging.getLogger(__name__)

NUM_CLIENTS = 64
BATCH_ITEMS = 16
NUM_SAMPLES = int(os.environ.get("FURLONG_LOAD_SAMPLES", "4000"))
KILL_SECONDS = float(os.environ.get("FURLONG_LOAD_KILL_SECONDS", "0.1"))


def items_of(client):
    """The client's share of all samples; every third answer is wrong."""
    for number in range(client, NUM_SAMPLES, NUM_CLIENTS):
        answer = number + (number % 3 == 0)
        yield reward_pb2.ScoreItem(sample_id=str(number), response=rf"so \boxed{{{answer}}}", label=str(number))


def ask_in_batches(stub, items):
    for start in range(0, len(items), BATCH_ITEMS):
        message = reward_pb2.ScoreBatchRequest(items=items[start : start + BATCH_ITEMS])
        while True:
            try:
                yield from call(lambda message=message: stub.ScoreBatch(message, timeout=120), peer="reward").scores
                break
            except OverloadedError as error:
                time.sleep(error.retry_after_seconds)


def ask_in_a_stream(stub, items):
    requests = (reward_pb2.ScoreStreamRequest(item=item) for item in items)
    yield from (reply.score for reply in stub.ScoreStream(requests, timeout=120))


@pytest.mark.slow
def test_every_sample_is_answered_once_while_workers_are_killed():
    answers, done = [], threading.Event()
    num_killed = 0
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(
                reward_server(num_workers=1, max_pending_items=5000, max_batch_items=BATCH_ITEMS, max_calls=64)
            )
            for _ in range(2)
        ]
        channel = open_balanced_channel([replica.address for replica in replicas], NO_CREDENTIALS, service=SERVICE)
        stub = reward_pb2_grpc.RewardServiceStub(stack.enter_context(channel))

        def run_client(client):
            ask = ask_in_a_stream if client % 2 else ask_in_batches
            answers.extend(ask(stub, list(items_of(client))))

        def kill_workers():
            nonlocal num_killed
            choice = random.Random(0)
            while not done.wait(KILL_SECONDS):
                process_ids = choice.choice(replicas).pool.process_ids
                if process_ids:
                    os.kill(process_ids[0], signal.SIGKILL)
                    num_killed += 1

        killer = threading.Thread(target=kill_workers)
        clients = [threading.Thread(target=run_client, args=(client,)) for client in range(NUM_CLIENTS)]
        started = time.monotonic()
        for thread in [killer, *clients]:
            thread.start()
        for client in clients:
            client.join()
        seconds = time.monotonic() - started
        done.set()
        killer.join()
        num_lost = sum(
            replica.registry.get_sample_value("reward_workers_lost_total", {"cause": "died"}) or 0
            for replica in replicas
        )
    logger.info("%d samples in %.1f s, %d kills, %d workers lost", NUM_SAMPLES, seconds, num_killed, num_lost)
    assert Counter(int(score.sample_id) for score in answers) == Counter(range(NUM_SAMPLES))
    assert num_killed > 0
    assert [score.sample_id for score in answers if (score.value == 1.0) != (int(score.sample_id) % 3 != 0)] == []

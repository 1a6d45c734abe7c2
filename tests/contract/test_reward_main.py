"""The reward service as placement runs it: one process that starts, serves, and ends in order."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from furlong.reward.v1 import reward_pb2, reward_pb2_grpc

from services.common.channels import call, open_channel, wait_for_health
from services.common.config.recipe import Recipe
from services.common.deployment import Addresses, Deployment, MetricsPorts, write_deployment
from services.common.security import NO_CREDENTIALS


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def deployment(tmp_path):
    nowhere = "127.0.0.1:1"
    return Deployment(
        run_id="run",
        incarnation=0,
        recipe=Recipe.model_validate({"reward": {"workers": 2}}),
        addresses=Addresses(reward=(f"127.0.0.1:{free_port()}",), weights=nowhere, trainer=nowhere, rollout=(nowhere,)),
        metrics_ports=MetricsPorts(reward=(free_port(),), weights=1, trainer=1, rollout=(1,)),
        redis_url="redis://127.0.0.1:1",
        run_directory=tmp_path,
        model_directory=tmp_path,
        cache_directory=tmp_path,
        trainer_rendezvous=nowhere,
    )


@pytest.fixture
def start(deployment, tmp_path):
    path = tmp_path / "deployment.json"
    write_deployment(deployment, path)
    processes = []

    def run():
        process = subprocess.Popen(
            [sys.executable, "-m", "services.reward.main", "--deployment", str(path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


def descendants_of(process_id):
    with open(f"/proc/{process_id}/task/{process_id}/children") as file:
        children = [int(child) for child in file.read().split()]
    return children + [process for child in children for process in descendants_of(child)]


def test_service_scores_serves_metrics_and_ends_in_order(start, deployment):
    process = start()
    with open_channel(deployment.addresses.reward[0], NO_CREDENTIALS) as channel:
        wait_for_health(channel, peer="reward", timeout_seconds=60)
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        item = reward_pb2.ScoreItem(response=r"<think>231</think>\boxed{132}", label="132")
        reply = call(lambda: stub.ScoreBatch(reward_pb2.ScoreBatchRequest(items=[item]), timeout=30), peer="reward")
    assert [(score.value, score.rule) for score in reply.scores] == [(1.0, "string")]
    with urllib.request.urlopen(f"http://127.0.0.1:{deployment.metrics_ports.reward[0]}/metrics") as page:
        assert 'reward_samples_total{grader="boxed",outcome="right",rule="string"} 1.0' in page.read().decode()
    workers = descendants_of(process.pid)
    assert len(workers) == 3, "the template and two workers"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_taken_port_is_one_line_and_a_failure(start, deployment):
    host, _, port = deployment.addresses.reward[0].rpartition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        process = start()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith(f"reward: address {deployment.addresses.reward[0]} cannot be bound")

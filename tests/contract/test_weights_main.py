"""The weights service as placement runs it: one process that starts, serves, and ends in order."""

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.common.config.recipe import Recipe
from services.common.deployment import Addresses, Deployment, MetricsPorts, write_deployment
from services.common.embedded_valkey import EmbeddedValkey
from services.common.security import NO_CREDENTIALS
from services.weights.client import WeightsClient

Start = Callable[[str], tuple[subprocess.Popen[str], Deployment]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the process with its versions in the Redis of a URL."""
    nowhere = "127.0.0.1:1"
    processes = []

    def run(redis_url: str) -> tuple[subprocess.Popen[str], Deployment]:
        deployment = Deployment(
            run_id="run",
            incarnation=0,
            recipe=Recipe(),
            addresses=Addresses(
                reward=(nowhere,), weights=f"127.0.0.1:{free_port()}", trainer=nowhere, rollout=(nowhere,)
            ),
            metrics_ports=MetricsPorts(reward=(1,), weights=free_port(), trainer=1, rollout=(1,)),
            redis_url=redis_url,
            run_directory=tmp_path,
            model_directory=tmp_path,
            cache_directory=tmp_path,
            trainer_rendezvous=nowhere,
        )
        write_deployment(deployment, tmp_path / "deployment.json")
        command = [sys.executable, "-m", "services.weights.main", "--deployment", str(tmp_path / "deployment.json")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process, deployment

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def test_process_serves_calls_and_metrics_and_ends_on_sigterm(start: Start, tmp_path: Path):
    valkey = EmbeddedValkey(folder=tmp_path / "valkey")
    valkey.start()
    try:
        process, deployment = start(valkey.url)
        client = WeightsClient(deployment.addresses.weights, NO_CREDENTIALS, phase_timeout_seconds=5.0)
        client.wait_until_serving(30.0)
        assert client.list_versions() == ()
        assert client.list_engines() == ()
        with urllib.request.urlopen(f"http://127.0.0.1:{deployment.metrics_ports.weights}/metrics") as reply:
            text = reply.read().decode()
        assert 'weights_calls_total{code="OK",method="ListVersions"} 1.0' in text
        assert "weights_publish_seconds_count 0.0" in text
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    finally:
        valkey.stop()


def test_unreachable_redis_is_one_line_and_a_failure(start: Start):
    process, _ = start("redis://:secret@127.0.0.1:1")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("weights: Redis at redis://:***@127.0.0.1:1 does not answer")
    assert "secret" not in errors

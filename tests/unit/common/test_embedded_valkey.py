import os
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from services.common.embedded_valkey import EmbeddedValkey
from services.common.errors import ConfigError, StateConflictError, UnavailableError
from services.common.records import Group, group_id
from services.common.redis_connection import open_redis, redact_url
from services.common.redis_prompt_ledger import RedisPromptLedger
from services.common.redis_sample_queue import RedisSampleQueue


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "valkey"


@pytest.fixture
def server(folder):
    valkey = EmbeddedValkey(folder=folder)
    yield valkey
    valkey.stop()


def make_group(position):
    name = group_id(run_id="r", round_=0, position=position)
    return Group(group_id=name, round=0, position=position, prompt_token_ids=(1,) * 1000, samples=())


def open_run(url):
    client = open_redis(url)
    queue = RedisSampleQueue(client, run_id="r", max_groups=10_000)
    ledger = RedisPromptLedger(client, run_id="r", groups_per_round=200, max_prompts_per_round=400, lease_seconds=60)
    return client, queue, ledger


def test_kill_loses_nothing_that_was_answered(server):
    """A writer in another process pushes and settles as fast as it can while the server is killed."""
    server.start()
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, server.url], stdout=subprocess.PIPE, text=True)
    answered = [writer.stdout.readline() for _ in range(40)]
    os.kill(server.process_id, signal.SIGKILL)
    rest, _ = writer.communicate(timeout=60)
    answered += rest.splitlines()
    pushed = {int(line.split()[1]) for line in answered if line.startswith("pushed")}
    settled = {int(line.split()[1]) for line in answered if line.startswith("settled")}
    assert len(pushed) >= 20

    server.stop()
    server.start()
    client, queue, ledger = open_run(server.url)
    queued = [entry.group.position for entry in queue.claim(max_groups=10_000, timeout_seconds=0)]
    assert len(queued) == len(set(queued))
    assert pushed <= set(queued)
    assert settled <= set(ledger.round_state(0).accepted_positions)
    assert not any(queue.push(make_group(position)) for position in pushed), "pushed ids are still known"
    [lease] = ledger.lease(worker="b", max_round=0, max_prompts=1)
    assert lease.position > max(queued), "a position that was handed out before the kill is not handed out twice"
    client.close()


_WRITER = """
import sys
from services.common.errors import UnavailableError
from services.common.records import Group, group_id
from services.common.redis_connection import open_redis
from services.common.redis_prompt_ledger import RedisPromptLedger
from services.common.redis_sample_queue import RedisSampleQueue
client = open_redis(sys.argv[1])
queue = RedisSampleQueue(client, run_id="r", max_groups=10_000)
ledger = RedisPromptLedger(client, run_id="r", groups_per_round=200, max_prompts_per_round=400, lease_seconds=60)
try:
    while True:
        [lease] = ledger.lease(worker="a", max_round=0, max_prompts=1)
        name = group_id(run_id="r", round_=0, position=lease.position)
        queue.push(Group(group_id=name, round=0, position=lease.position, prompt_token_ids=(1,) * 1000, samples=()))
        print("pushed", lease.position, flush=True)
        ledger.settle_accepted(lease, rewards=[1.0])
        print("settled", lease.position, flush=True)
except (UnavailableError, ValueError):
    client.close()
"""


def test_orderly_stop_keeps_the_data_and_leaves_no_process(server):
    server.start()
    client, queue, _ = open_run(server.url)
    queue.push(make_group(3))
    client.close()
    process_id = server.process_id
    server.stop()
    server.stop()
    assert server.process_id is None
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    server.start()
    client, queue, _ = open_run(server.url)
    assert queue.depth() == 1
    client.close()


def test_password_is_needed_and_only_the_owner_can_read_it(server, folder):
    server.start()
    password = server.url.partition("@")[0].rpartition(":")[2]
    assert len(password) >= 32
    assert stat.S_IMODE((folder / "valkey.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert password not in server.log_file.read_text()
    assert password not in _command_line(server.process_id)
    without = server.url.replace(f":{password}@", "")
    with pytest.raises(UnavailableError, match="Authentication required"):
        open_redis(without)


def _command_line(process_id):
    with open(f"/proc/{process_id}/cmdline") as file:
        return file.read()


def test_taken_port_is_named(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is taken.*set another port"):
            EmbeddedValkey(folder=folder, port=port).start()


def test_two_servers_cannot_share_a_folder(server, folder):
    server.start()
    with pytest.raises(StateConflictError, match="in use by another Valkey server"):
        EmbeddedValkey(folder=folder).start()
    client = open_redis(server.url)
    client.close()


def test_server_left_behind_by_a_killed_owner_is_replaced_with_its_data(server, folder):
    owner = subprocess.run([sys.executable, "-c", _OWNER, str(folder)], capture_output=True, text=True)
    orphan_id = int(owner.stdout)
    os.kill(orphan_id, 0)
    server.start()
    assert server.process_id != orphan_id
    _wait_until_gone(orphan_id)
    client = open_redis(server.url)
    assert client.get("kept") == b"yes"
    client.close()


_OWNER = """
import os, signal, sys
from pathlib import Path
from services.common.embedded_valkey import EmbeddedValkey
from services.common.redis_connection import open_redis
valkey = EmbeddedValkey(folder=Path(sys.argv[1]))
valkey.start()
open_redis(valkey.url).set("kept", "yes")
print(valkey.process_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _wait_until_gone(process_id):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{process_id}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.02)
    raise AssertionError(f"process {process_id} is still alive")


def test_server_that_ends_at_once_is_an_error_with_its_last_words(server, folder):
    (folder / "appendonlydir").mkdir(parents=True)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(UnavailableError, match=r"does not answer.*valkey.log, which ends: .*manifest"):
        server.start()
    assert server.process_id is None


def test_unreachable_redis_is_one_line_without_the_password():
    with pytest.raises(UnavailableError) as caught:
        open_redis("redis://:secret-word@127.0.0.1:1/0", timeout_seconds=0.5)
    message = str(caught.value)
    assert message.startswith("Redis at redis://:***@127.0.0.1:1/0 does not answer: ")
    assert "correct redis.url" in message
    assert "secret-word" not in message
    assert "\n" not in message


def test_url_that_is_none_is_a_config_error():
    with pytest.raises(ConfigError, match=r"redis\.url is 'localhost:6379'"):
        open_redis("localhost:6379")


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("rediss://user:p%40w@h", "rediss://user:***@h"),
        ("redis://h:1", "redis://h:1"),
        ("redis://h:1/[", "redis://h:1/["),
        ("redis://[::1", "(not a URL)"),
    ],
)
def test_redacted_url(url, redacted):
    assert redact_url(url) == redacted


def test_lost_server_is_an_unavailable_error(server):
    server.start()
    client, queue, _ = open_run(server.url)
    queue.claim(max_groups=1, timeout_seconds=0)
    server.stop()
    with pytest.raises(UnavailableError, match="Redis does not run queue_push"):
        queue.push(make_group(0))
    with pytest.raises(UnavailableError, match="Redis does not run queue_claim"):
        queue.claim(max_groups=1, timeout_seconds=0)
    with pytest.raises(UnavailableError, match="depth"):
        queue.depth()
    client.close()

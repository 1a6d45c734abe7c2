"""The command as a newcomer meets it: one line per fault, the right exit code, nothing left running."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

REAL_DATA_LINE = json.dumps({"prompt": "1+2", "label": "3"})


def furlong(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_the_commands(tmp_path: Path) -> None:
    done = furlong(tmp_path, "--help")
    assert done.returncode == 0
    for command in ("smoke", "test", "recipe", "doctor", "version"):
        assert f" {command} " in done.stdout


def test_the_command_loads_neither_torch_nor_an_engine() -> None:
    code = (
        "import sys; import services.cli.smoke.command, services.cli.checks, services.cli.doctor, services.cli.main;"
        "print([name for name in ('torch', 'sglang', 'megatron', 'transformers', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_command_has_examples_or_says_what_it_does(tmp_path: Path) -> None:
    assert "./furlong smoke --resume --steps 60" in furlong(tmp_path, "smoke", "--help").stdout
    assert "./furlong test unit" in furlong(tmp_path, "test", "--help").stdout
    assert "./furlong recipe > my.toml" in furlong(tmp_path, "recipe", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("smoke", "--recipe", "no.toml"),
            "recipe no.toml: cannot be read (No such file or directory); give an existing .toml file",
        ),
        (
            ("smoke", "--set", "trainer.rank=2"),
            "recipe: unknown key 'trainer.rank' (value 2); `furlong recipe` lists the known ones",
        ),
        (
            ("smoke", "--set", "trainer.parallel.tp=2"),
            "recipe: trainer.ranks is 1, but tp 2 x pp 1 x cp 1 needs a multiple of 2; "
            "set trainer.ranks=2 or make trainer.parallel smaller",
        ),
        (
            ("smoke", "--prompt-data", "no.jsonl"),
            "{folder}/no.jsonl: cannot be read (No such file or directory); give an existing .jsonl file",
        ),
        (
            ("smoke", "--prompt-data", "bad_json.jsonl"),
            "{folder}/bad_json.jsonl:2: is no JSON (Expecting value: line 1 column 1 (char 0)); "
            "wanted one JSON object a line",
        ),
        (
            ("smoke", "--prompt-data", "good.jsonl", "--label-key", "answer"),
            "{folder}/good.jsonl:1: has no key 'answer' (its keys: 'prompt', 'label'); "
            "name the right ones with --input-key and --label-key",
        ),
        (
            ("smoke", "--set", "reward.grader=my.module:function"),
            "reward.grader: grader 'my.module:function' reaches out of the service, and of such graders none may be "
            "used; add it to reward.external_graders",
        ),
        (
            ("smoke", "--set", "redis.url=redis://127.0.0.1:1/0"),
            "Redis at redis://127.0.0.1:1/0 does not answer: Error 111 connecting to 127.0.0.1:1. Connection refused.; "
            "wanted a Redis 6.2 or Valkey server there, start it, correct redis.url, "
            'or set redis.url="" to use the embedded one',
        ),
        (
            ("smoke", "--set", "model.preset=", "--set", "model.path=no_model"),
            "model.path {folder}/no_model has no config.json; give a folder with config.json and tokenizer.json",
        ),
        (
            ("smoke", "--resume"),
            "--resume: {folder}/runs/smoke holds no run; leave --resume out to start one, or give the --name of a run",
        ),
        (("smok",), "No such command 'smok'. Did you mean 'smoke'?; see furlong --help"),
        (
            ("test", "units"),
            "test part 'units' is unknown; wanted some of lint, unit, contract, integration, or all",
        ),
    ],
)
def test_a_newcomers_fault_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "bad_json.jsonl").write_text(f"{REAL_DATA_LINE}\nnot json\n")
    (tmp_path / "good.jsonl").write_text(f"{REAL_DATA_LINE}\n")
    done = furlong(tmp_path, *arguments)
    assert done.stderr == f"furlong: error: {message.format(folder=tmp_path)}\n"
    assert done.returncode == 2
    assert not (tmp_path / "runs" / "smoke").exists()


def test_a_prompt_that_the_tokenizer_cannot_encode_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text(f'{REAL_DATA_LINE}\n{{"prompt": "é", "label": "1"}}\n')
    done = furlong(tmp_path, "smoke", "--prompt-data", "odd.jsonl")
    assert done.returncode == 2
    assert done.stderr.startswith(f"furlong: error: {tmp_path}/odd.jsonl:2: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = furlong(tmp_path, "smoke", "--set", f"weights.endpoint.port={port}")
    assert done.stderr == (
        f"furlong: error: weights.endpoint.port is {port}, but port {port} on 127.0.0.1 is taken by another process; "
        "end that process, set weights.endpoint.port to a free port, or to 0 to have one chosen\n"
    )
    assert done.returncode == 2


# The whole command but for the services' programs: a shell line stands in for each of them.
STAND_IN_SCRIPT = """
import dataclasses, os, sys, time
from pathlib import Path
from services.cli.machine import GIB, PINNED_PACKAGES, MachineFacts
from services.cli.main import exit_with
from services.cli.placement.local_processes import LocalProcesses
from services.cli.smoke.command import heed_signals
from services.cli.smoke.flow import World, run_smoke
from services.cli.smoke.options import SmokeOptions
from services.cli.smoke.view import PlainView

class StandIns(LocalProcesses):
    def start(self, spec):
        if spec.name != "valkey":
            spec = dataclasses.replace(spec, command=("sh", "-c", sys.argv[1]))
        super().start(spec)

heed_signals()
facts = MachineFacts(python_version=(3, 11), package_versions=dict(PINNED_PACKAGES), available_memory_bytes=9 * GIB,
                     free_disk_bytes=9 * GIB, free_shared_memory_bytes=GIB)
world = World(make_placement=lambda prefix: StandIns(shared_memory_prefix=prefix), look_at_machine=lambda folder: facts,
              view=PlainView(print), environment=os.environ, python=sys.executable,
              cache_directory=Path("cache").absolute(), install_seconds=0.0, started=time.monotonic())
exit_with(lambda: run_smoke(SmokeOptions(), world))
"""


def start_with_stand_ins(tmp_path: Path, service: str) -> subprocess.Popen[str]:
    script = tmp_path / "furlong_with_stand_ins.py"
    script.write_text(STAND_IN_SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(script), service],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def descendants(process: subprocess.Popen[str], *, wanted: int) -> list[psutil.Process]:
    """Its children's children, once there are as many as wanted."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = psutil.Process(process.pid).children(recursive=True)
        if len(found) >= wanted:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{len(found)} processes; wanted {wanted}")


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def run_id_of(tmp_path: Path) -> str:
    deployment = json.loads((tmp_path / "runs" / "smoke" / "deployment.json").read_text())
    return str(deployment["run_id"])


def test_ctrl_c_ends_everything_within_ten_seconds(tmp_path: Path) -> None:
    # The stand-in ignores SIGTERM and has a child, as an engine that hangs.
    command = start_with_stand_ins(tmp_path, "trap '' TERM; sleep 300 & wait; sleep 300")
    # The watchdog, the queue server and its Valkey, and the reward stand-in with its child.
    family = descendants(command, wanted=5)
    run_id = run_id_of(tmp_path)
    (Path("/dev/shm") / f"furlong-{run_id}-trainer-0").write_bytes(b"x")
    began = time.monotonic()
    command.send_signal(signal.SIGINT)
    time.sleep(0.5)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=20)
    assert time.monotonic() - began < 10.0
    assert command.returncode == 130
    assert errors == "furlong: interrupted; everything was stopped\n"
    assert [process for process in family if is_alive(process)] == []
    assert list(Path("/dev/shm").glob(f"furlong-{run_id}*")) == []


def test_sigterm_ends_everything_as_ctrl_c_does(tmp_path: Path) -> None:
    command = start_with_stand_ins(tmp_path, "sleep 300")
    family = descendants(command, wanted=4)
    command.terminate()
    command.communicate(timeout=20)
    assert command.returncode == 130
    assert [process for process in family if is_alive(process)] == []


def test_a_service_that_dies_is_named_with_its_last_log_lines(tmp_path: Path) -> None:
    command = start_with_stand_ins(tmp_path, "sleep 0.5; seq 1 50; exit 4")
    _, errors = command.communicate(timeout=30)
    lines = errors.splitlines()
    assert command.returncode == 1
    assert lines[:30] == [f"  {number}" for number in range(21, 51)]
    assert len(lines) == 31
    assert lines[30].startswith("furlong: error: service reward-0 ended after ")
    assert lines[30].endswith(
        f"with exit code 4; wanted it to run until the end; its log is {tmp_path}/runs/smoke/logs/reward-0.log"
    )

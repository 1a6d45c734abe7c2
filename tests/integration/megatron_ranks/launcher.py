"""Starts the ranks of a layout as processes and gathers what they saw."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.integration.megatron_ranks.reassembly import Shards, reassemble, relative_difference
from tests.integration.megatron_ranks.tiny_hub_model import AIR_LIKE, TINY, write_hub_model

Result = dict[str, Any]
Results = dict[str, Result]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of all ranks; starting takes longer than the cases, so they share it."""

    cases: tuple[str, ...]
    model: str = "tiny"
    world: int = 1
    tp: int = 1
    ep: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    loads: str = ""
    """The launch whose checkpoint the case `load` takes."""


MODELS = {"tiny": TINY, "air-like": AIR_LIKE}


class Launcher:
    """Runs each launch when it is first asked for."""

    def __init__(self, folder: Path, launches: Mapping[str, Launch]) -> None:
        self._folder = folder
        self._launches = launches
        self._results: dict[str, list[Results]] = {}

    def ranks(self, launch: str, case: str) -> list[Result]:
        """What each rank of a launch saw in a case."""
        if launch not in self._results:
            self._results[launch] = self._run(launch, self._launches[launch])
        return [rank[case] for rank in self._results[launch]]

    def model(self, name: str) -> Path:
        """The folder of a hub model."""
        folder = self._folder / "models" / name
        if not folder.exists():
            write_hub_model(folder, MODELS[name])
        return folder

    def _run(self, name: str, launch: Launch) -> list[Results]:
        out = self._folder / name
        out.mkdir()
        if launch.loads:
            self.ranks(launch.loads, "save")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "tests.integration.megatron_ranks.rank", "--cases", *launch.cases]
        command += ["--model", str(self.model(launch.model)), "--out", str(out), "--dtype", launch.dtype]
        command += ["--device", launch.device]
        command += ["--saved", str(self._folder / launch.loads / "checkpoint"), "--port", str(port)]
        command += ["--world", str(launch.world), "--tp", str(launch.tp), "--ep", str(launch.ep)]
        # Megatron takes a GPU that it sees.
        environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if launch.device == "cpu" else {})}
        _finish([[*command, "--rank", str(rank)] for rank in range(launch.world)], environment)
        files = [out / f"rank{rank}.pt" for rank in range(launch.world)]
        return [torch.load(file, weights_only=True, map_location="cpu") for file in files]


def _finish(commands: list[list[str]], environment: dict[str, str]) -> None:
    ranks = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(errors)[-4000:]


def largest_difference(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(relative_difference(found[name], wanted[name]) for name in wanted)


def whole(ranks: list[Result], key: str) -> dict[str, torch.Tensor]:
    return reassemble([as_shards(rank[key]) for rank in ranks])


def as_shards(value: object) -> Shards:
    assert isinstance(value, list)
    return value

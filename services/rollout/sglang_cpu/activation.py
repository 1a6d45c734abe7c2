"""Prepares a process for the SGLang engine on a CPU; called before anything imports SGLang."""

from collections.abc import MutableMapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

STANDINS = Path(__file__).parent / "standins"
"""One folder per package that may be missing, each holding the package."""


def activate_cpu_engine(
    *,
    device: str,
    tp: int,
    environment: MutableMapping[str, str],
    search_path: list[str],
    cores: Sequence[int],
) -> tuple[str, ...]:
    """Makes SGLang importable and able to run on this machine's CPU; the names of the stand-ins in use.

    On another device nothing changes. A package that is installed is never shadowed. Processes started later inherit
    the stand-ins through PYTHONPATH.

    Args:
        device: "cpu" or "cuda".
        tp: tensor-parallel ranks of the engine.
        environment: os.environ.
        search_path: sys.path.
        cores: the cores this process may use, as in os.sched_getaffinity(0).
    """
    if device != "cpu":
        return ()
    environment.update(_engine_environment(tp, cores))
    missing = [folder for folder in sorted(STANDINS.iterdir()) if _is_missing(folder.name, search_path)]
    for folder in missing:
        search_path.append(str(folder))
    inherited = environment.get("PYTHONPATH", "").split(":")
    environment["PYTHONPATH"] = ":".join([*filter(None, inherited), *map(str, missing)])
    return tuple(folder.name for folder in missing)


def _engine_environment(tp: int, cores: Sequence[int]) -> dict[str, str]:
    environment = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        # Compiling the router takes the first request 4 to 9 s and a C++ compiler, and gains nothing at these sizes.
        "TORCH_COMPILE_DISABLE": "1",
    }
    if tp > 1:
        # Without it SGLang 0.5.20 asks for one NUMA node per rank.
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[rank % len(cores)]) for rank in range(tp))
    return environment


def _is_missing(package: str, search_path: Sequence[str]) -> bool:
    return PathFinder.find_spec(package, list(search_path)) is None

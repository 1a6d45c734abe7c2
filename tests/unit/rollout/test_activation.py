"""What a process gets for the CPU engine, and what it keeps."""

import subprocess
import sys
from pathlib import Path

from services.rollout.sglang_cpu.activation import STANDINS, activate_cpu_engine


def activate(environment: dict[str, str], search_path: list[str], device: str = "cpu", tp: int = 1) -> tuple[str, ...]:
    return activate_cpu_engine(device=device, tp=tp, environment=environment, search_path=search_path, cores=[2, 5])


def test_other_devices_change_nothing(tmp_path: Path) -> None:
    environment, search_path = {"PYTHONPATH": "/x"}, [str(tmp_path)]
    assert activate(environment, search_path, device="cuda") == ()
    assert (environment, search_path) == ({"PYTHONPATH": "/x"}, [str(tmp_path)])


def test_missing_packages_are_stood_in_for_here_and_in_children(tmp_path: Path) -> None:
    environment, search_path = {"PYTHONPATH": "/x"}, [str(tmp_path)]
    assert activate(environment, search_path) == ("sgl_kernel", "torchvision")
    folders = [str(STANDINS / "sgl_kernel"), str(STANDINS / "torchvision")]
    assert search_path == [str(tmp_path), *folders]
    assert environment["PYTHONPATH"].split(":") == ["/x", *folders]
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in environment


def test_installed_packages_are_not_shadowed(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").touch()
    search_path = [str(tmp_path)]
    assert activate({}, search_path) == ("sgl_kernel",)
    assert str(STANDINS / "torchvision") not in search_path


def test_activating_twice_is_the_same_as_once(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    search_path = [str(tmp_path)]
    activate(environment, search_path)
    once = (dict(environment), list(search_path))
    assert activate(environment, search_path) == ()
    assert (environment, search_path) == once


def test_each_rank_gets_a_core(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    activate(environment, [str(tmp_path)], tp=3)
    assert environment["SGLANG_CPU_OMP_THREADS_BIND"] == "2|5|2"


def test_stood_in_torchvision_can_be_imported_but_not_used() -> None:
    program = (
        "import torchvision, torchvision.transforms.v2.functional as f\n"
        "from torchvision.io import decode_jpeg\n"
        "from torchvision.transforms import InterpolationMode\n"
        "assert InterpolationMode.BICUBIC == 'BICUBIC'\n"
        "try: decode_jpeg(b'')\n"
        "except RuntimeError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(STANDINS / "torchvision")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "torchvision.decode_jpeg was called, but torchvision is not installed here"

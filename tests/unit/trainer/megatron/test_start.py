"""Importing the starter is free: megatron stays out and torch unchanged until a policy is started."""

import subprocess
import sys


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_importing_the_starter_loads_no_megatron_and_changes_no_torch() -> None:
    code = (
        "import sys, torch\n"
        "before = (torch.compile, torch.zeros, torch.Tensor.cuda, torch.cuda.current_device)\n"
        "import services.trainer.megatron.start\n"
        "after = (torch.compile, torch.zeros, torch.Tensor.cuda, torch.cuda.current_device)\n"
        "print(before == after, any(name.startswith('megatron') for name in sys.modules))\n"
    )
    assert _run(code) == "True False\n"


def test_the_shim_sends_cuda_factories_to_the_cpu_and_installs_once() -> None:
    code = (
        "import torch\n"
        "from services.trainer.megatron import cpu_shim\n"
        "cpu_shim.install()\n"
        "zeros = torch.zeros\n"
        "cpu_shim.install()\n"
        "made = torch.zeros(2, device='cuda', pin_memory=True)\n"
        "print(zeros is torch.zeros, made.device, made.type(), made.cuda() is made, torch.cuda.current_device())\n"
    )
    assert _run(code) == "True cpu torch.cuda.FloatTensor True cpu\n"

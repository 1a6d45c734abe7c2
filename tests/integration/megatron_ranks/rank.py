"""One trainer rank of a test: runs cases, each from the hub's weights, and writes what it saw to <out>/rank<r>.pt.

A process of its own, because starting a policy changes torch for the whole process (cpu_shim.py).
There is no main guard on purpose: saving a checkpoint must not need one.
"""

import argparse
import warnings
from pathlib import Path

import torch

from services.common.config.trainer import OptimizerConfig, ParallelConfig, TrainerConfig
from services.trainer.megatron.start import start_policy
from tests.integration.megatron_ranks.algorithm_steps import ALGORITHM_CASES
from tests.integration.megatron_ranks.cases import CASES, CLIP_NORM, Rank, start_over
from tests.integration.megatron_ranks.vocabulary_gradients import VOCABULARY_CASES

ALL_CASES = {**CASES, **ALGORITHM_CASES, **VOCABULARY_CASES}

parser = argparse.ArgumentParser()
parser.add_argument("--cases", nargs="+", choices=sorted(ALL_CASES), required=True)
for name in ("rank", "world", "port", "tp", "ep"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--device", default="cpu")
parser.add_argument("--model", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--saved", type=Path, default=Path())
arguments = parser.parse_args()

# As in the test process, but for what the libraries say about themselves.
warnings.simplefilter("error")
warnings.filterwarnings("ignore", module=r"megatron\.")
warnings.simplefilter("ignore", FutureWarning)
warnings.simplefilter("ignore", DeprecationWarning)
policy = start_policy(
    model_dir=arguments.model,
    trainer=TrainerConfig(
        ranks=arguments.world,
        device=arguments.device,
        parallel=ParallelConfig(tp=arguments.tp, ep=arguments.ep),
        optimizer=OptimizerConfig(clip_gradient_norm=CLIP_NORM),
    ),
    temperature=0.8,
    dtype=getattr(torch, arguments.dtype),
    seed=0,
    rank=arguments.rank,
    world=arguments.world,
    master_address="127.0.0.1",
    master_port=arguments.port,
)
rank = Rank(policy=policy, model_dir=arguments.model, out=arguments.out, saved=arguments.saved)
results = {}
for case in arguments.cases:
    start_over(rank)
    results[case] = ALL_CASES[case](rank)
policy.close()
torch.save(results, arguments.out / f"rank{arguments.rank}.pt")

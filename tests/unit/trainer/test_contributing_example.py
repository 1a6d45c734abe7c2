"""The example algorithm of CONTRIBUTING.md, run as it stands there."""

import math
import re
from pathlib import Path
from typing import Literal

import pytest
import torch

from services.common.config.algorithm import AlgorithmSection
from services.common.config.base import PositiveFloat
from services.trainer.algorithms.log_ratio import MAX_LOG_RATIO, masked_log_ratio
from services.trainer.algorithms.policy_loss import PolicyLossInputs, TokenLosses
from services.trainer.algorithms.sequences import Sequences

CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"

IN_SCOPE = {
    "AlgorithmSection": AlgorithmSection,
    "Literal": Literal,
    "MAX_LOG_RATIO": MAX_LOG_RATIO,
    "PolicyLossInputs": PolicyLossInputs,
    "PositiveFloat": PositiveFloat,
    "Sequences": Sequences,
    "TokenLosses": TokenLosses,
    "masked_log_ratio": masked_log_ratio,
    "math": math,
    "pytest": pytest,
    "torch": torch,
}


def run_example() -> dict[str, object]:
    """What the guide's blocks define."""
    blocks = re.findall(r"^```python\n(.*?)^```$", CONTRIBUTING.read_text(), flags=re.MULTILINE | re.DOTALL)
    scope: dict[str, object] = {**IN_SCOPE, "__name__": "example"}
    for block in blocks:
        exec(compile(block, str(CONTRIBUTING), "exec"), scope)
    return scope


def test_the_example_passes_its_own_test() -> None:
    scope = run_example()
    tests = [value for name, value in scope.items() if name.startswith("test_") and callable(value)]
    assert len(tests) == 1
    tests[0]()


def test_the_examples_section_has_its_own_key_and_those_of_every_type() -> None:
    section = run_example()["ToprConfig"]
    assert isinstance(section, type)
    assert issubclass(section, AlgorithmSection)
    values = section().model_dump()
    assert (values["type"], values["negative_cap"], values["aggregation"]) == ("topr", 1.0, "token_mean")


def test_the_example_is_the_sum_of_its_parts() -> None:
    tapered = run_example()["tapered"]
    assert callable(tapered)
    generator = torch.Generator().manual_seed(0)
    logprobs, old, advantages = (torch.randn(9, dtype=torch.float64, generator=generator) for _ in range(3))

    def loss(start: int, end: int, cu_seqlens: list[int]) -> torch.Tensor:
        inputs = PolicyLossInputs(
            logprobs=logprobs[start:end],
            old_logprobs=old[start:end],
            advantages=advantages[start:end],
            mask=torch.ones(end - start, dtype=torch.bool),
            sequences=Sequences(cu_seqlens=torch.tensor(cu_seqlens)),
        )
        result = tapered(inputs, negative_cap=1.0)
        assert isinstance(result, TokenLosses)
        return result.losses.sum()

    whole = loss(0, 9, [0, 4, 4, 9])
    assert float(loss(0, 4, [0, 4]) + loss(4, 9, [0, 0, 5])) == pytest.approx(float(whole))

"""Learning-rate schedules, by hand."""

import pytest

from services.common.config.trainer import WarmStartConfig
from services.trainer.learning_rate import ramped, warm_start_lr


def test_the_ramp_rises_linearly_and_then_stays() -> None:
    assert [ramped(3.0, step=step, ramp_steps=3) for step in range(5)] == [1.0, 2.0, 3.0, 3.0, 3.0]


def test_without_a_ramp_the_rate_is_constant() -> None:
    assert ramped(0.5, step=0, ramp_steps=0) == 0.5


def test_the_warm_start_ramps_holds_and_falls_to_its_final_share() -> None:
    config = WarmStartConfig(good_steps=4, mixed_steps=10, lr=1.0, ramp_steps=2, final_lr_share=0.25)
    rates = [warm_start_lr(config, step=step) for step in (0, 1, 3, 4, 5, 9, 11, 13)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.9, 0.5, 0.3, 0.25])


def test_a_warm_start_without_mixed_steps_does_not_fall() -> None:
    config = WarmStartConfig(good_steps=3, mixed_steps=0, lr=1.0, ramp_steps=0)
    assert warm_start_lr(config, step=2) == 1.0

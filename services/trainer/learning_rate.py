"""Learning-rate schedules. Pure."""

from services.common.config.trainer import WarmStartConfig


def ramped(lr: float, *, step: int, ramp_steps: int) -> float:
    """The rate of a step (from 0): a linear rise over ramp_steps steps, then lr."""
    return lr * min(1.0, (step + 1) / ramp_steps) if ramp_steps else lr


def warm_start_lr(config: WarmStartConfig, *, step: int) -> float:
    """The rate of a warm-start step: a ramp, a plateau over the good steps, and a linear fall over the mixed ones."""
    fallen = max(0, step - config.good_steps) / config.mixed_steps if config.mixed_steps else 0.0
    return ramped(config.lr, step=step, ramp_steps=config.ramp_steps) * max(config.final_lr_share, 1.0 - fallen)

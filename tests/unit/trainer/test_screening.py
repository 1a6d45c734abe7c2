"""Which tokens of a micro-batch are trained on, and how the others are counted."""

import math

import pytest
import torch

from services.common.config.algorithm import RejectionConfig
from services.trainer.packing import TrainingSequence, pack
from services.trainer.screening import screen

NO_REJECTION = RejectionConfig()


def _batch(*engine_logprobs):
    """One token of prompt, then a response with these log-probabilities under the engine."""
    sequences = [
        TrainingSequence(
            prompt_token_ids=(1,), response_token_ids=(2,) * len(values), engine_logprobs=values, advantage=1.0
        )
        for values in engine_logprobs
    ]
    return pack(sequences, range(len(sequences)))


def _old(batch, ratios):
    """Trainer log-probabilities so that the counted tokens have these ratios p_trainer / p_engine."""
    old = torch.full_like(batch.engine_logprobs, math.nan)
    old[batch.loss_mask] = batch.engine_logprobs[batch.loss_mask] + torch.tensor(ratios).log()
    return old


def _kept(batch, result):
    """Which of the response tokens are left, sequence after sequence."""
    return result.mask[batch.loss_mask].tolist()


def test_without_rules_every_token_with_numbers_is_kept_whatever_stands_under_the_mask():
    batch = _batch((-1.0, -2.0), (), (-3.0,))
    result = screen(batch, _old(batch, [1.0, 1e-6, 9.0]), None, NO_REJECTION)
    assert torch.equal(result.mask, batch.loss_mask)
    assert result.num_samples_rejected == {"undefined_logprobs": 0, "veto": 0, "mismatch": 0}
    assert result.num_tokens_rejected == 0


@pytest.mark.parametrize("source", ["engine", "trainer", "reference"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_sample_with_an_undefined_log_probability_goes_as_a_whole(source, value):
    engine = (value, -1.0) if source == "engine" else (-1.0, -1.0)
    batch = _batch(engine, (-1.0,))
    old = torch.full_like(batch.engine_logprobs, -1.0)
    reference = torch.full_like(old, -1.0)
    if source != "engine":
        (old if source == "trainer" else reference)[0] = value
    result = screen(batch, old, reference, NO_REJECTION)
    assert _kept(batch, result) == [False, False, True]
    assert result.num_samples_rejected == {"undefined_logprobs": 1, "veto": 0, "mismatch": 0}
    assert result.num_tokens_rejected == 2


@pytest.mark.parametrize(
    ("level", "kept", "num_samples"),
    [
        # tokens within [0.5, 2]
        ("token", [True, False, False, True, True, True], 0),
        # products 0.3 x 3 = 0.9, 0.4 x 1.5 x 1.5 = 0.9 and 1.1
        ("sequence", [True, True, True, True, True, True], 0),
    ],
)
def test_bounds_are_tested_at_the_level(level, kept, num_samples):
    batch = _batch((-1.0, -1.0), (-1.0, -1.0, -1.0), (-1.0,))
    old = _old(batch, [1.0, 0.3, 3.0, 1.5, 1.5, 1.1]) if level == "token" else _old(batch, [0.3, 3, 0.4, 1.5, 1.5, 1.1])
    result = screen(batch, old, None, RejectionConfig(level=level, lower=0.5, upper=2.0))
    assert _kept(batch, result) == kept
    assert result.num_samples_rejected["mismatch"] == num_samples


def test_product_and_geometric_mean_reject_whole_sequences():
    # ratios 1.3 five times: product 3.71 outside [0.5, 2], geometric mean 1.3 inside
    batch = _batch((-1.0,) * 5, (-1.0,))
    old = _old(batch, [1.3] * 5 + [1.0])
    by_product = screen(batch, old, None, RejectionConfig(level="sequence"))
    assert _kept(batch, by_product) == [False] * 5 + [True]
    assert by_product.num_samples_rejected == {"undefined_logprobs": 0, "veto": 0, "mismatch": 1}
    assert by_product.num_tokens_rejected == 5
    by_mean = screen(batch, old, None, RejectionConfig(level="geometric"))
    assert _kept(batch, by_mean) == [True] * 6
    narrow = screen(batch, old, None, RejectionConfig(level="geometric", lower=0.9, upper=1.2))
    assert _kept(batch, narrow) == [False] * 5 + [True]


def test_veto_works_alone_and_comes_before_the_bounds():
    batch = _batch((-1.0, -1.0), (-1.0, -1.0))
    old = _old(batch, [1e-5, 1.0, 3.0, 1.0])
    alone = screen(batch, old, None, RejectionConfig(veto=1e-4))
    assert _kept(batch, alone) == [False, False, True, True]
    assert alone.num_samples_rejected == {"undefined_logprobs": 0, "veto": 1, "mismatch": 0}
    both = screen(batch, old, None, RejectionConfig(veto=1e-4, level="token"))
    assert _kept(batch, both) == [False, False, False, True]
    # the sample that keeps a token is not counted as rejected, its token is
    assert both.num_samples_rejected == {"undefined_logprobs": 0, "veto": 1, "mismatch": 0}
    assert both.num_tokens_rejected == 3


def test_the_mismatch_is_measured_on_rejected_tokens_too():
    batch = _batch((-1.0,), (math.nan,))
    result = screen(batch, _old(batch, [1e-5, 1.0]), None, RejectionConfig(veto=1e-4))
    assert result.defined[batch.loss_mask].tolist() == [True, False]

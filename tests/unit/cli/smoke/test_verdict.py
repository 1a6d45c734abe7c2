"""When a run counts as having learned."""

from math import sqrt

import pytest

from services.cli.smoke.verdict import Outcome, judge, standard_error
from tests.unit.cli.sample_records import make_evaluation, make_report

REPORTS = [make_report(0), make_report(1)]


def test_standard_error_of_two_proportions() -> None:
    # Pooled p = (0.4 * 100 + 0.6 * 100) / 200 = 0.5; sqrt(0.25 * 2 / 100).
    before, after = make_evaluation(0.4, num_prompts=100), make_evaluation(0.6, num_prompts=100)
    assert standard_error(before, after) == pytest.approx(sqrt(0.25 * 0.02))


def test_a_clear_rise_is_learning() -> None:
    verdict = judge(make_evaluation(0.40), make_evaluation(0.95), REPORTS, num_samples=512, must_learn=True)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.LEARNED, 0)
    assert verdict.reason == "held-out accuracy 0.400 to 0.950"


def test_a_rise_that_chance_could_make_is_not() -> None:
    # 100 prompts: 3 standard errors are 3 * sqrt(0.25 * 0.02) = 0.212 at p = 0.5.
    before, after = make_evaluation(0.42, num_prompts=100), make_evaluation(0.58, num_prompts=100)
    verdict = judge(before, after, REPORTS, num_samples=512, must_learn=True)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.NOT_LEARNED, 1)
    assert verdict.reason == (
        "held-out accuracy 0.420 to 0.580: a rise of 0.160; wanted at least 0.212 to call it learning"
    )


def test_a_tiny_rise_is_not_learning_however_many_prompts() -> None:
    before, after = make_evaluation(0.40, num_prompts=10**6), make_evaluation(0.44, num_prompts=10**6)
    assert judge(before, after, REPORTS, num_samples=1, must_learn=True).outcome is Outcome.NOT_LEARNED


def test_on_a_users_prompts_a_completed_run_is_enough() -> None:
    verdict = judge(make_evaluation(0.4), make_evaluation(0.4), REPORTS, num_samples=512, must_learn=False)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.COMPLETED, 0)


@pytest.mark.parametrize(("must_learn", "exit_code"), [(True, 1), (False, 0)])
def test_zero_rewards_are_said_plainly(must_learn: bool, exit_code: int) -> None:
    reports = [make_report(step, mean_reward=0.0) for step in range(3)]
    verdict = judge(make_evaluation(0.0), make_evaluation(0.0), reports, num_samples=768, must_learn=must_learn)
    assert verdict.exit_code == exit_code
    assert verdict.reason == (
        "no reward was above zero in 768 samples: the model cannot solve these prompts; nothing was learned"
    )

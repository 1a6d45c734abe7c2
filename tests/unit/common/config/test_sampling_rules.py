"""Recipes whose sampling rules or batches cannot work are refused at load, with the remedy."""

from collections.abc import Sequence

import pytest

from services.common.config.loading import load_recipe
from services.common.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.overlong.penalty_buffer_tokens=4"], "of which one alone does nothing; set both above 0 or both"),
        (["rollout.overlong.penalty_factor=1.0"], "of which one alone does nothing"),
        (
            ["rollout.overlong.penalty_factor=1.0", "rollout.overlong.penalty_buffer_tokens=17"],
            "penalty_buffer_tokens is 17, more than rollout.sampling.max_new_tokens 16; set it to 16 or less",
        ),
        (
            ["rollout.evaluation.temperature=0", "rollout.evaluation.samples_per_prompt=4"],
            "samples_per_prompt is 4, but at temperature 0 all responses are the same",
        ),
        (
            ["trainer.max_tokens_per_rank=2031"],
            r'a sample may have 2032 tokens, .*per_rank 2031; raise it to 2032 or set trainer.overlong_samples="drop"',
        ),
        (
            ["rollout.over_sampling_prompts=33"],
            "over_sampling_prompts is 33, but prompts_per_step 32 x max_refills 1 allows 32 further prompts; "
            "set it to 32 or less, or raise max_refills",
        ),
        (["rollout.over_sampling_prompts=1", "rollout.max_refills=0"], "allows 0 further prompts"),
        (["rollout.over_sampling_prompts=-1"], "rollout.over_sampling_prompts is -1"),
        (["rollout.when_short=never"], "rollout.when_short is 'never'"),
        (["trainer.balance=time"], "trainer.balance is 'time'"),
        (["rollout.evaluation.pass_threshold=nan"], "rollout.evaluation.pass_threshold"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(overrides: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(None, overrides)


def test_all_refills_may_be_over_sampled_and_none_is_by_default() -> None:
    recipe = load_recipe(None, ["rollout.over_sampling_prompts=64", "rollout.max_refills=2"])
    assert (recipe.rollout.over_sampling_prompts, recipe.rollout.max_prompts_per_step) == (64, 96)
    assert load_recipe(None).rollout.over_sampling_prompts == 0


def test_samples_longer_than_the_cap_may_be_dropped() -> None:
    recipe = load_recipe(None, ["trainer.max_tokens_per_rank=100", "trainer.overlong_samples=drop"])
    assert (recipe.trainer.max_tokens_per_rank, recipe.trainer.overlong_samples) == (100, "drop")


def test_the_defaults_train_short_without_penalty_filter_or_balancing_by_work() -> None:
    recipe = load_recipe(None)
    assert (recipe.rollout.when_short, recipe.trainer.balance, recipe.trainer.overlong_samples) == (
        "train_short",
        "tokens",
        "error",
    )
    overlong, evaluation = recipe.rollout.overlong, recipe.rollout.evaluation
    assert (overlong.penalty_buffer_tokens, overlong.penalty_factor, overlong.filter) == (0, 0.0, False)
    assert (evaluation.samples_per_prompt, evaluation.pass_threshold) == (1, 1.0)

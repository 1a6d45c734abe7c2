"""The section trainer.algorithm: a key for every type, and no setting that does nothing."""

import pytest

from services.cli.recipe_listing import recipe_toml
from services.common.config.advice import recipe_warnings
from services.common.config.loading import load_recipe
from services.common.errors import ConfigError

TYPES = {
    # type: (baseline, normalize_std, whiten, aggregation, clip_low, clip_high) of its paper
    "grpo": ("group_mean", True, False, "sequence_mean", 0.2, 0.2),
    "dapo": ("group_mean", True, False, "token_mean", 0.2, 0.28),
    "dr_grpo": ("group_mean", False, False, "sequence_sum", 0.2, 0.2),
    "rloo": ("leave_one_out", False, False, "sequence_sum", 0.2, 0.2),
    "reinforce_plus_plus": ("none", False, True, "token_mean", 0.2, 0.2),
    "reinforce_plus_plus_baseline": ("group_mean", False, True, "token_mean", 0.2, 0.2),
    "gspo": ("group_mean", True, False, "sequence_mean", 1e-4, 2e-4),
    "gspo_token": ("group_mean", True, False, "sequence_mean", 1e-4, 2e-4),
    "cispo": ("group_mean", True, False, "token_mean", 1.0, 4.0),
}


def _load(*assignments: str):
    return load_recipe(None, [f"trainer.algorithm.{assignment}" for assignment in assignments])


@pytest.mark.parametrize(("type_", "expected"), TYPES.items())
def test_each_type_has_the_defaults_of_its_paper(type_, expected):
    algorithm = _load(f"type={type_}").trainer.algorithm
    assert algorithm.type == type_
    found = (algorithm.baseline, algorithm.normalize_std, algorithm.whiten, algorithm.aggregation)
    assert (*found, algorithm.clip_low, algorithm.clip_high) == expected


@pytest.mark.parametrize("type_", TYPES)
def test_the_listing_of_each_type_reads_back_and_explains_every_key(type_, tmp_path):
    recipe = _load(f"type={type_}")
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_toml(recipe))
    assert load_recipe(path) == recipe
    lines = recipe_toml(recipe).splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert all(lines[number - 1].startswith("# ") for number in keys)


def test_a_table_without_a_type_is_one_of_the_default_type():
    algorithm = _load("clip_high=0.5").trainer.algorithm
    assert (algorithm.type, algorithm.clip_high) == ("dapo", 0.5)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["type=ppo"], "trainer.algorithm.type is 'ppo': Input should be one of 'grpo', 'dapo'"),
        (["type=gspo", "dual_clip=3"], "unknown key 'trainer.algorithm.dual_clip' (value 3)"),
        (["clip_high=inf"], "trainer.algorithm.clip_high is inf: Input should be a finite number"),
        (["clip_low=2"], "trainer.algorithm.clip_low is 2: Input should be less than 1"),
        (["kl.coefficient=0.1"], 'trainer.algorithm.kl: coefficient is 0.1, but placement is "off"'),
        (["kl.placement=reward", "kl.unbiased=true"], 'unbiased is true with placement "reward"'),
        (["kl.placement=both"], "trainer.algorithm.kl.placement is 'both': Input should be 'off', 'loss' or 'reward'"),
        (["importance.mode=off", "importance.normalize=true"], 'normalize is True, but mode is "off"'),
        (["importance.lower=0.5"], 'lower is 0.5, but mode "truncate" only cuts above'),
        (["importance.mode=mask", "importance.lower=1.5"], "lower is 1.5 and upper 2.0, but the ratio of equal"),
        (["rejection.upper=3"], 'trainer.algorithm.rejection: upper is 3.0, but level is "off"'),
        (["rejection.veto=1"], "veto is 1.0, which rejects sequences that match"),
        (["baseline=none"], 'normalize_std is true with baseline "none"'),
        (["divisor_tokens=8"], 'divisor_tokens is 8, but aggregation "token_mean" has no constant'),
        (["old_logprobs=engine"], 'old_logprobs is "engine" with importance.mode "truncate"'),
        (["dual_clip=1"], "dual_clip is 1.0, which would cut tokens that have not moved"),
    ],
)
def test_what_cannot_work_or_would_do_nothing_is_refused_in_one_line(assignments, message):
    with pytest.raises(ConfigError) as raised:
        _load(*assignments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_correction_rejection_and_veto_work_alone_and_together():
    assert _load("rejection.veto=1e-4").trainer.algorithm.rejection.veto == 1e-4
    algorithm = _load(
        "importance.mode=mask",
        "importance.level=geometric",
        "importance.lower=0.99",
        "importance.upper=1.01",
        "importance.normalize=true",
        "rejection.level=sequence",
        "rejection.upper=4",
        "rejection.veto=1e-4",
    ).trainer.algorithm
    assert (algorithm.importance.lower, algorithm.rejection.upper) == (0.99, 4.0)


def test_a_group_of_one_needs_a_loss_without_a_group_baseline():
    with pytest.raises(ConfigError, match="samples_per_prompt is 1"):
        load_recipe(None, ["rollout.samples_per_prompt=1"])
    recipe = load_recipe(
        None,
        [
            "rollout.samples_per_prompt=1",
            "rollout.drop_equal_rewards=false",
            "trainer.algorithm.type=reinforce_plus_plus",
        ],
    )
    assert recipe.rollout.samples_per_prompt == 1


def test_a_group_of_one_is_always_one_of_equal_rewards():
    with pytest.raises(ConfigError, match="drop_equal_rewards"):
        load_recipe(None, ["rollout.samples_per_prompt=1", "trainer.algorithm.type=reinforce_plus_plus"])


@pytest.mark.parametrize(
    ("assignments", "start"),
    [
        (["trainer.updates_per_step=1"], "trainer.updates_per_step is 1"),
        (
            ["trainer.algorithm.kl.placement=loss", "trainer.algorithm.kl.estimator=k1"],
            "trainer.algorithm.kl.estimator",
        ),
        (["trainer.algorithm.type=gspo_token"], "trainer.algorithm.type is"),
    ],
)
def test_a_setting_without_effect_that_may_be_meant_is_a_warning(assignments, start):
    (warning,) = recipe_warnings(load_recipe(None, assignments))
    assert warning.startswith(start)


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        [
            "trainer.updates_per_step=1",
            "trainer.algorithm.old_logprobs=engine",
            "trainer.algorithm.importance.mode=off",
        ],
        [
            "trainer.algorithm.kl.placement=loss",
            "trainer.algorithm.kl.estimator=k1",
            "trainer.algorithm.kl.unbiased=true",
        ],
        ["trainer.algorithm.type=gspo_token", "trainer.algorithm.discount=0.9"],
    ],
)
def test_what_takes_effect_is_no_warning(assignments):
    assert recipe_warnings(load_recipe(None, assignments)) == []

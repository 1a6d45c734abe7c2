import logging

import pytest
from prometheus_client import CollectorRegistry

from services.common.records import Score
from services.reward.metrics import RewardMetrics
from services.reward.worker_process import GradeItem
from services.reward.zero_score_watch import ZeroScoreWatch

BOXED = r"<think>so \boxed{34}"


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def watch(registry):
    return ZeroScoreWatch(RewardMetrics(registry), window_samples=4)


def observe(watch, *values, response=BOXED, grader="boxed"):
    for value in values:
        item = GradeItem(sample_id="", grader=grader, prompt="", response=response, label="34")
        watch.observe(item, Score(value=value, extracted="34", rule="no_answer", seconds=0.0, error=""))


def windows(registry, grader="boxed"):
    return registry.get_sample_value("reward_all_zero_windows_total", {"grader": grader}) or 0


def state(registry):
    return registry.get_sample_value("reward_is_all_zero", {"grader": "boxed"})


def test_all_zero_window_with_boxes_warns_once_and_counts(watch, registry, caplog):
    with caplog.at_level(logging.WARNING):
        observe(watch, 0, 0, 0)
        assert (windows(registry), caplog.records) == (0, [])
        observe(watch, 0)
        assert (windows(registry), state(registry), len(caplog.records)) == (1, 1, 1)
        observe(watch, 0, 0, 0, 0)
        assert (windows(registry), len(caplog.records)) == (2, 1), "the same trouble is not logged again"
    record = caplog.records[0]
    assert record.message.startswith("every score is zero although responses have boxed answers")
    assert (record.num_samples, record.num_boxed, record.example_label) == (4, 4, "34")
    assert record.example_response_end == BOXED


def test_one_positive_score_clears_the_window_and_the_state(watch, registry, caplog):
    observe(watch, 0, 0, 0, 0)
    observe(watch, 0, 1, 0, 0)
    assert (windows(registry), state(registry)) == (1, 0)
    observe(watch, 0, 0, 0, 0)
    assert len(caplog.records) == 2, "trouble that comes back is logged again"


def test_zero_scores_without_boxes_are_no_reason_to_warn(watch, registry, caplog):
    observe(watch, 0, 0, 0, 0, response="I do not know")
    assert (windows(registry), state(registry), caplog.records) == (0, 0, [])


def test_lowest_score_of_minus_one_counts_as_zero_and_graders_are_watched_apart(watch, registry):
    observe(watch, -1, -1, grader="dapo")
    observe(watch, 0, 0)
    assert windows(registry) == 0
    observe(watch, -1, -1, grader="dapo", response=r"\fbox{34}")
    assert (windows(registry, "dapo"), windows(registry)) == (1, 0)

"""The board between the loop and the calls, and the summaries of a step."""

import threading

import pytest

from services.common.prompt_ledger import RoundState
from services.common.records import FinishReason, Group, Sample, VersionSpan
from services.trainer.reports import Board, PublishSummary, RoundSummary, StepReport, UpdateSummary
from services.trainer.round_summary import summarize_round
from services.trainer.sample_selection import SelectedSamples
from services.trainer.update_summary import summarize_updates


def make_report(step: int) -> StepReport:
    return StepReport(
        step=step,
        round=summarize_round(
            [],
            RoundState(round=step, num_accepted=0, num_leased=0, num_spent=0),
            [],
            SelectedSamples(indices=()),
            num_rejected={},
        ),
        update=UpdateSummary(),
        publish=PublishSummary(
            is_committed=True, are_digests_equal=True, sync_seconds=0.1, pause_seconds=0.01, num_aborted=0
        ),
        wait_seconds=0.0,
        train_seconds=0.0,
        held_out_accuracy=None,
        queue_depth=0,
    )


def test_a_watcher_gets_past_reports_first_and_then_new_ones() -> None:
    board, seen = Board(), []
    for step in range(3):
        board.add_report(make_report(step))
    watcher = threading.Thread(target=lambda: seen.extend(r.step for r in board.reports_from(1)))
    watcher.start()
    board.add_report(make_report(3))
    board.close()
    watcher.join(5)
    assert seen == [1, 2, 3]


def test_the_goal_never_goes_back() -> None:
    board = Board()
    assert board.raise_target(5) == 5
    assert board.raise_target(3) == 5
    assert board.wait_for_work(step=4, timeout_seconds=0) == (True, False)
    assert board.wait_for_work(step=5, timeout_seconds=0) == (False, False)


def test_a_wanted_checkpoint_is_waited_for_until_it_is_saved() -> None:
    board = Board()
    board.request_checkpoint()
    assert board.wait_for_work(step=0, timeout_seconds=0) == (False, True)
    assert not board.wait_for_checkpoint(timeout_seconds=0.05)
    board.checkpoint_saved("/c")
    assert board.wait_for_checkpoint(timeout_seconds=0)
    assert board.status.checkpoint_path == "/c"


def make_sample(index: int, *, steps: list[tuple[int, int]], verify: int) -> Sample:
    num_tokens = sum(count for _, count in steps)
    return Sample(
        sample_id=str(index),
        response_token_ids=(1,) * num_tokens,
        logprobs=(-1.0,) * num_tokens,
        version_spans=tuple(VersionSpan(step=step, num_tokens=count) for step, count in steps),
        reward=0.0,
        finish_reason=FinishReason.STOP,
        num_verify_steps=verify,
    )


def test_a_rounds_figures_by_hand() -> None:
    samples = (make_sample(0, steps=[(3, 2), (4, 3)], verify=2), make_sample(1, steps=[(4, 3)], verify=1))
    group = Group(group_id="g", round=4, position=0, prompt_token_ids=(1,), samples=samples)
    state = RoundState(
        round=4,
        num_accepted=1,
        num_leased=0,
        num_spent=2,
        num_dropped={"equal_rewards": 1},
        num_rejected={"too_old": 2},
        reward_sum=3.0,
        num_samples=4,
    )
    summary = summarize_round(
        [group], state, ["<think>7</think>8", "<think></think>8"], SelectedSamples(indices=(0, 1)), num_rejected={}
    )
    assert summary == RoundSummary(
        mean_reward=0.75,
        num_groups=1,
        num_samples=2,
        num_samples_left_out={},
        num_response_tokens=8,
        num_groups_dropped={"equal_rewards": 1, "too_old": 2},
        accept_length=2.0,  # (5 - 1 + 3 - 1) / (2 + 1)
        thinking_rate=0.5,
        mean_response_tokens=4.0,
        mean_lag_steps=0.5,
        max_lag_steps=1,
    )


def test_a_left_out_sample_is_counted_and_in_no_other_figure_but_the_reward() -> None:
    samples = (make_sample(0, steps=[(3, 5)], verify=1), make_sample(1, steps=[(4, 3)], verify=1))
    group = Group(group_id="g", round=4, position=0, prompt_token_ids=(1,), samples=samples)
    state = RoundState(round=4, num_accepted=1, num_leased=0, num_spent=1, reward_sum=1.0, num_samples=2)
    selected = SelectedSamples(indices=(1,), num_left_out={"truncated": 1})
    summary = summarize_round([group], state, ["<think>7</think>8", "8"], selected, num_rejected={})
    assert (summary.num_groups, summary.num_samples, summary.num_response_tokens) == (1, 1, 3)
    assert summary.num_samples_left_out == {"truncated": 1}
    assert (summary.mean_reward, summary.thinking_rate, summary.max_lag_steps) == (0.5, 0.0, 0)


def test_a_sample_rejected_for_its_log_probabilities_is_counted_as_left_out_and_not_as_trained() -> None:
    samples = (make_sample(0, steps=[(4, 5)], verify=1), make_sample(1, steps=[(4, 3)], verify=1))
    group = Group(group_id="g", round=4, position=0, prompt_token_ids=(1,), samples=samples)
    state = RoundState(round=4, num_accepted=1, num_leased=0, num_spent=1, reward_sum=1.0, num_samples=2)
    selected = SelectedSamples(indices=(0, 1))
    summary = summarize_round([group], state, ["8", "8"], selected, num_rejected={"veto": 1})
    assert (summary.num_samples, summary.num_samples_left_out) == (1, {"veto": 1})


def test_update_figures_are_means_over_tokens_or_updates_and_the_mismatch_a_maximum_over_ranks() -> None:
    figures = {
        "num_updates": 2.0,
        "num_tokens": 10.0,
        "global_count": 4.0,
        "num_tokens_rejected": 30.0,
        "num_samples_rejected/veto": 3.0,
        "num_samples_rejected/mismatch": 0.0,
        "policy_loss": 5.0,
        "mtp_loss": 3.0,
        "gradient_norm": 1.0,
        "clip_fraction": 1.0,
        "logprob_mismatch": 0.1,
        "importance_weight": 10.0,
        "importance_cut": 1.0,
        "sequence_masked": 2.5,
        "kl": 5.0,
        "entropy": 2.0,
    }
    summary = summarize_updates([{**figures, "max_mismatch": 0.2}, {**figures, "max_mismatch": 0.5}])
    # the loss over what it is aggregated by, everything else over the 10 tokens trained on
    assert summary.policy_loss == 1.25
    assert (summary.importance_cut_fraction, summary.sequence_masked_fraction, summary.kl) == (0.1, 0.25, 0.5)
    assert summary.rejected_token_fraction == 0.75
    assert summary.num_samples_rejected == {"veto": 3}
    assert (summary.mtp_loss, summary.gradient_norm) == (1.5, 0.5)
    assert summary.logprob_mismatch_mean == pytest.approx(0.01)
    assert summary.logprob_mismatch_max == 0.5


def test_a_round_without_updates_has_zero_figures() -> None:
    assert summarize_updates([{"max_mismatch": 0.0}]) == UpdateSummary()


def test_a_round_whose_every_sample_was_rejected_says_so_and_nothing_else() -> None:
    figures = {"num_updates": 1.0, "num_tokens": 0.0, "num_samples_rejected/undefined_logprobs": 4.0}
    assert summarize_updates([figures]) == UpdateSummary(num_samples_rejected={"undefined_logprobs": 4})

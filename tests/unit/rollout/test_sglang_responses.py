"""Reading SGLang's outputs."""

import pytest

from services.common.errors import UnavailableError
from services.common.records import FinishReason, VersionSpan
from services.rollout.sglang_responses import read_response


def output(**changes: object) -> dict[str, object]:
    meta: dict[str, object] = {
        "output_token_logprobs": [(-0.5, 4, None), (-0.25, 5, None), (-1.0, 0, None)],
        "weight_versions": [
            {"version": "3", "start": 0, "end": 2},
            {"version": "4", "start": 2, "end": 3},
            {"version": "5", "start": 3, "end": 3},
        ],
        "finish_reason": {"type": "stop", "matched": 0},
        "spec_verify_ct": 2,
        "cached_tokens": 0,
    }
    return {"output_ids": [4, 5, 0], "meta_info": {**meta, **changes}}


def test_tokens_logprobs_and_versions_are_read() -> None:
    response = read_response(output())
    assert response.token_ids == (4, 5, 0)
    assert response.logprobs == (-0.5, -0.25, -1.0)
    assert response.version_spans == (VersionSpan(step=3, num_tokens=2), VersionSpan(step=4, num_tokens=1))
    assert response.finish_reason is FinishReason.STOP
    assert response.num_verify_steps == 2


@pytest.mark.parametrize(("name", "reason"), [("length", FinishReason.LENGTH), ("abort", FinishReason.ABORTED)])
def test_finish_reasons_are_read(name: str, reason: FinishReason) -> None:
    assert read_response(output(finish_reason={"type": name})).finish_reason is reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_token_logprobs": [(-0.5, 4, None)]}, "3 tokens, 1 logprobs and versions of 3 tokens"),
        ({"weight_versions": [{"version": "3", "start": 0, "end": 2}]}, "versions of 2 tokens"),
        ({"weight_versions": [{"version": "none", "start": 0, "end": 3}]}, "unreadable"),
        ({"finish_reason": {"type": "tired"}}, "unreadable"),
    ],
)
def test_what_is_not_sglangs_output_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnavailableError, match=message):
        read_response(output(**changes))

"""Reads what SGLang returns for one request."""

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from services.common.errors import UnavailableError
from services.common.records import FinishReason, VersionSpan
from services.rollout.engine import EngineResponse


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Tokens [start, end) of a response, made by one version."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class _Finish:
    """Why a response ended."""

    type: str


@dataclass(frozen=True, kw_only=True)
class _MetaInfo:
    """SGLang's meta_info, as far as it is used here."""

    output_token_logprobs: list[tuple[float, int, str | None]]
    weight_versions: list[_Span]
    finish_reason: _Finish
    spec_verify_ct: int = 0


@dataclass(frozen=True, kw_only=True)
class _Output:
    """SGLang's output for one request."""

    output_ids: list[int]
    meta_info: _MetaInfo


_OUTPUT = TypeAdapter(_Output)
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}


def read_response(output: object) -> EngineResponse:
    """The response in one of SGLang's outputs; version strings are steps.

    Raises:
        UnavailableError: the output is none of SGLang 0.5.20.
    """
    try:
        content = _OUTPUT.validate_python(output)
        meta = content.meta_info
        spans = tuple(
            VersionSpan(step=int(span.version), num_tokens=span.end - span.start)
            for span in meta.weight_versions
            if span.end > span.start
        )
        response = EngineResponse(
            token_ids=tuple(content.output_ids),
            logprobs=tuple(logprob for logprob, _, _ in meta.output_token_logprobs),
            version_spans=spans,
            finish_reason=_REASONS[meta.finish_reason.type],
            num_verify_steps=meta.spec_verify_ct,
        )
    except (ValidationError, KeyError, ValueError) as error:
        raise UnavailableError(f"SGLang's output is unreadable ({error}); install sglang 0.5.20") from error
    num_tokens = len(response.token_ids)
    num_in_spans = sum(span.num_tokens for span in spans)
    if not num_tokens == len(response.logprobs) == num_in_spans:
        raise UnavailableError(
            f"SGLang returned {num_tokens} tokens, {len(response.logprobs)} logprobs and versions of {num_in_spans} "
            "tokens; wanted one of each per token; install sglang 0.5.20"
        )
    return response

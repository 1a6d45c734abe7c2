"""An engine without a model, for tests: responses come from a function, tokens one by one on the event loop."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from itertools import groupby

from services.common.errors import StateConflictError, TransferError, UnavailableError
from services.common.records import FinishReason, PolicyVersion, VersionSpan
from services.rollout.engine import CommitResult, EngineResponse, SamplingParameters
from services.weights.transfer import EngineRankLayout, StagedRank

Respond = Callable[[tuple[int, ...], int, int], tuple[int, ...]]
"""Token ids of a response, from the prompt, the step of the version and the index of the sample."""


class FakeEngine:
    """Implements the Engine protocol; the same calls in the same order give the same responses.

    A response that ends with the end token has stopped, any other is cut at max_new_tokens or has run out. A commit
    between two tokens shows in the version spans. Log-probabilities are -token / 64.

    Example: FakeEngine(respond=lambda prompt, step, sample: (7, 0)) answers 7 and the end token to every prompt.
    """

    def __init__(
        self,
        *,
        layouts: Sequence[EngineRankLayout] = (),
        respond: Respond | None = None,
        end_token_id: int = 0,
        seconds_per_token: float = 0.0,
    ) -> None:
        self._layouts = tuple(layouts)
        self._respond = respond or hashed_response
        self._end_token_id = end_token_id
        self.seconds_per_token = seconds_per_token
        """Time each token takes."""
        self._version: PolicyVersion | None = None
        self._is_gone = False
        self.refusal = ""
        """Why the next commit is refused; empty: it is not."""
        self.commits: list[tuple[PolicyVersion, tuple[StagedRank, ...]]] = []
        """Every commit that was not refused."""

    @property
    def version(self) -> PolicyVersion | None:
        """The committed version it serves; None before the first commit."""
        return self._version

    @property
    def layouts(self) -> Sequence[EngineRankLayout]:
        """The layouts it was made with."""
        return self._layouts

    async def generate(
        self, prompt_token_ids: Sequence[int], *, sampling: SamplingParameters, num_samples: int
    ) -> list[EngineResponse]:
        """num_samples responses to one prompt; with temperature 0 all are the first.

        Raises:
            StateConflictError: no version is committed yet.
            UnavailableError: it was shut down.
        """
        step = self._require_version().step
        prompt = tuple(prompt_token_ids)
        answers = [
            self._respond(prompt, step, index if sampling.temperature else 0)[: sampling.max_new_tokens]
            for index in range(num_samples)
        ]
        return list(await asyncio.gather(*map(self._emit, answers)))

    async def commit(self, version: PolicyVersion, staged: Sequence[StagedRank]) -> CommitResult:
        """Serves the version from the next token on.

        Raises:
            TransferError: `refusal` says so; the version stays.
            UnavailableError: it was shut down.
        """
        self._check_alive()
        if self.refusal:
            reason, self.refusal = self.refusal, ""
            raise TransferError(reason)
        self._version = version
        self.commits.append((version, tuple(staged)))
        return CommitResult(pause_seconds=0.0, are_digests_equal=True)

    def shutdown(self) -> None:
        """Makes every further and every running call raise UnavailableError."""
        self._is_gone = True

    async def _emit(self, token_ids: tuple[int, ...]) -> EngineResponse:
        steps: list[int] = []
        for _ in token_ids:
            await asyncio.sleep(self.seconds_per_token)
            steps.append(self._require_version().step)
        has_stopped = token_ids[-1:] == (self._end_token_id,)
        return EngineResponse(
            token_ids=token_ids,
            logprobs=tuple(-token / 64 for token in token_ids),
            version_spans=tuple(VersionSpan(step=step, num_tokens=len(list(run))) for step, run in groupby(steps)),
            finish_reason=FinishReason.STOP if has_stopped else FinishReason.LENGTH,
            num_verify_steps=0,
        )

    def _require_version(self) -> PolicyVersion:
        self._check_alive()
        if self._version is None:
            raise StateConflictError("the engine has no weights; publish a version first")
        return self._version

    def _check_alive(self) -> None:
        if self._is_gone:
            raise UnavailableError("the engine was shut down; restart the rollout service")


def hashed_response(prompt: tuple[int, ...], step: int, sample: int) -> tuple[int, ...]:
    """One to eight tokens of 1 to 63 that depend on all arguments, and the end token 0."""
    digest = hashlib.sha256(repr((prompt, step, sample)).encode()).digest()
    length = 1 + digest[0] % 8
    return (*(1 + byte % 63 for byte in digest[1 : 1 + length]), 0)

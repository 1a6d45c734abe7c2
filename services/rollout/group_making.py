"""Makes one group of a lease: generate, score, and push, drop or give back."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from services.common.errors import OverloadedError
from services.common.prompt_ledger import PromptLease, PromptLedger
from services.common.records import Group, Prompt, group_id
from services.common.sample_queue import LATE, SampleQueue
from services.rollout.engine import Engine, SamplingParameters
from services.rollout.group_rules import GroupRules
from services.rollout.overlong import OverlongPenalty
from services.rollout.scoring import ScoredResponse, Scorer, TextDecoder, sample_of, score_responses
from services.rollout.tally import ACCEPTED, SURPLUS, Tally

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_RETRY_SECONDS = 1.0


class PromptOrder(Protocol):
    """The run's endless prompt order."""

    def prompt_at(self, position: int) -> Prompt:
        """The prompt at a position; the same on every replica and after every restart."""
        ...


class GroupMaker:
    """Turns leases into settled groups. The engine's event loop runs it; queue, ledger and scorer run in threads."""

    def __init__(
        self,
        *,
        run_id: str,
        engine: Engine,
        prompts: PromptOrder,
        decoder: TextDecoder,
        scorer: Scorer,
        ledger: PromptLedger,
        queue: SampleQueue,
        sampling: SamplingParameters,
        samples_per_prompt: int,
        penalty: OverlongPenalty,
        rules: GroupRules,
        require_end_token: bool,
        tally: Tally,
    ) -> None:
        self._run_id = run_id
        self._engine = engine
        self._prompts = prompts
        self._decoder = decoder
        self._scorer = scorer
        self._ledger = ledger
        self._queue = queue
        self._sampling = sampling
        self._samples_per_prompt = samples_per_prompt
        self._penalty = penalty
        self._rules = rules
        self._require_end_token = require_end_token
        self._tally = tally
        self._lease_ids_before_settling: set[str] = set()

    async def make(self, lease: PromptLease) -> None:
        """Settles the lease. When it fails or is cancelled, the lease is still the caller's to give back.

        Raises:
            UnavailableError: the engine or the queue is gone.
        """
        started = time.monotonic()
        outcome = await self._make(lease)
        self._tally.add_group(outcome, seconds=time.monotonic() - started)

    def may_stop(self, lease: PromptLease) -> bool:
        """Whether the group is generated or scored at the moment, so that nothing of it has left this process."""
        return lease.lease_id in self._lease_ids_before_settling

    async def _make(self, lease: PromptLease) -> str:
        prompt = self._prompts.prompt_at(lease.position)
        self._lease_ids_before_settling.add(lease.lease_id)
        try:
            scored = await self._generate_and_score(prompt)
        finally:
            self._lease_ids_before_settling.discard(lease.lease_id)
        self._tally.add_responses(scored)
        rewards = [item.reward for item in scored]
        reason = self._rules.reason_to_drop(scored)
        if reason is not None:
            finite = [reward for reward in rewards if math.isfinite(reward)]
            held = await asyncio.to_thread(self._ledger.settle_dropped, lease, reason=reason, rewards=finite)
            return reason if held else SURPLUS
        group = self._group(lease, prompt, scored)
        is_new = await asyncio.to_thread(_until_there_is_room, lambda: self._queue.push(group))
        held = await asyncio.to_thread(self._ledger.settle_accepted, lease, rewards=rewards)
        if held:
            return ACCEPTED
        return LATE if is_new else SURPLUS

    async def _generate_and_score(self, prompt: Prompt) -> list[ScoredResponse]:
        """The responses with the rewards to train on: the grader's less the penalty of long ones."""
        responses = await self._engine.generate(
            prompt.token_ids, sampling=self._sampling, num_samples=self._samples_per_prompt
        )
        scored = await asyncio.to_thread(
            _until_there_is_room,
            lambda: score_responses(
                [(prompt, response) for response in responses],
                decoder=self._decoder,
                scorer=self._scorer,
                require_end_token=self._require_end_token,
            ),
        )
        return [replace(item, reward=item.reward + self._penalty.of(len(item.response.token_ids))) for item in scored]

    def _group(self, lease: PromptLease, prompt: Prompt, scored: Sequence[ScoredResponse]) -> Group:
        name = group_id(run_id=self._run_id, round_=lease.round, position=lease.position)
        return Group(
            group_id=name,
            round=lease.round,
            position=lease.position,
            prompt_token_ids=prompt.token_ids,
            samples=tuple(sample_of(item, group_id=name, index=index) for index, item in enumerate(scored)),
        )


def _until_there_is_room(action: Callable[[], Result]) -> Result:
    """Repeats an action that a full peer refuses; back-pressure reaches the engine because its task waits here."""
    while True:
        try:
            return action()
        except OverloadedError as error:
            logger.info("waiting for room", extra={"detail": str(error)})
            time.sleep(min(error.retry_after_seconds, _RETRY_SECONDS))

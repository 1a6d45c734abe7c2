"""One rollout service's generation loop over fakes."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from services.common.memory_prompt_ledger import MemoryPromptLedger
from services.common.memory_sample_queue import MemoryQueueState, MemorySampleQueue
from services.common.records import Group, PolicyVersion, Prompt, Score
from services.rollout.engine import SamplingParameters
from services.rollout.fake_engine import FakeEngine
from services.rollout.generation import GenerationLoop
from services.rollout.group_making import GroupMaker
from services.rollout.group_rules import GroupRules
from services.rollout.metrics import RolloutMetrics
from services.rollout.overlong import OverlongPenalty
from services.rollout.scoring import ResponseToScore
from services.rollout.tally import Tally

GROUPS_PER_ROUND = 2
END = 0
NO_PENALTY = OverlongPenalty(max_new_tokens=4, buffer_tokens=0, factor=0.0)


class NumberedPrompts:
    """The prompt of a position says the position."""

    def prompt_at(self, position: int) -> Prompt:
        return Prompt(text=str(position), token_ids=(3, position + 10), label=str(position), source="test")


class SpaceDecoder:
    """Ids separated by spaces."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


class RuleScorer:
    """Scores by a rule on (label, response text)."""

    def __init__(self, rule: Callable[[str, str], float]) -> None:
        self.rule = rule

    def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
        return [
            Score(value=self.rule(item.label, item.response), extracted="", rule="string", seconds=0.0, error="")
            for item in items
        ]


def half_right(label: str, response: str) -> float:
    """The first sample of a group is right, the others are wrong."""
    return float(response.startswith("20 "))


def respond(prompt: tuple[int, ...], step: int, sample: int) -> tuple[int, ...]:
    """Sample i answers 20 + (i mod 2)."""
    return (20 + sample % 2, END)


class GatedQueue(MemorySampleQueue):
    """Calls `gate` in the thread of the caller before each push."""

    gate: Callable[[Group], None] = staticmethod(lambda group: None)

    def push(self, group: Group) -> bool:
        self.gate(group)
        return super().push(group)


class Scene:
    """One rollout service's loop over fakes."""

    def __init__(
        self,
        rule: Callable[[str, str], float] = half_right,
        *,
        groups_per_round: int = GROUPS_PER_ROUND,
        max_prompts_per_round: int = 4,
        max_lag_versions: int = 0,
        num_rounds: int = 100,
        max_groups: int = 100,
        scorer: RuleScorer | None = None,
        seconds_per_token: float = 0.0,
        penalty: OverlongPenalty = NO_PENALTY,
        filter_truncated: bool = False,
        require_end_token: bool = True,
        answer: Callable[[tuple[int, ...], int, int], tuple[int, ...]] = respond,
        over_sampling_prompts: int = 0,
        max_groups_in_flight: int = 3,
        engine: FakeEngine | None = None,
        beside: "Scene | None" = None,
    ) -> None:
        """A service; with `beside`, a further replica on that scene's ledger and queue."""
        self.engine = engine or FakeEngine(respond=answer, end_token_id=END, seconds_per_token=seconds_per_token)
        self.ledger = (
            beside.ledger
            if beside
            else MemoryPromptLedger(
                run_id="run",
                groups_per_round=groups_per_round,
                max_prompts_per_round=max_prompts_per_round,
                lease_seconds=1e6,
                clock=lambda: 0.0,
                over_sampling_prompts=over_sampling_prompts,
            )
        )
        self.state = beside.state if beside else MemoryQueueState()
        self.queue = GatedQueue(run_id="run", max_groups=max_groups, state=self.state)
        self.tally = Tally(RolloutMetrics(CollectorRegistry()))
        maker = GroupMaker(
            run_id="run",
            engine=self.engine,
            prompts=NumberedPrompts(),
            decoder=SpaceDecoder(),
            scorer=scorer or RuleScorer(rule),
            ledger=self.ledger,
            queue=self.queue,
            sampling=SamplingParameters(temperature=1.0, top_p=1.0, max_new_tokens=4),
            samples_per_prompt=2,
            penalty=penalty,
            rules=GroupRules(drop_equal_rewards=True, filter_truncated=filter_truncated),
            require_end_token=require_end_token,
            tally=self.tally,
        )
        self.loop = GenerationLoop(
            worker="rollout-1" if beside else "rollout-0",
            engine=self.engine,
            ledger=self.ledger,
            maker=maker,
            max_lag_versions=max_lag_versions,
            num_rounds=num_rounds,
            has_surplus=over_sampling_prompts > 0,
            max_groups_in_flight=max_groups_in_flight,
            tally=self.tally,
        )

    async def commit(self, step: int) -> None:
        await self.engine.commit(PolicyVersion(run_id="run.0", step=step), ())

    async def run_until(self, is_done: Callable[[], bool]) -> None:
        """Runs the loop until the condition holds, for five seconds at most."""
        task = asyncio.create_task(self.loop.run())
        async with asyncio.timeout(5):
            while not is_done() and not task.done():
                await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def is_complete(self, round_: int) -> bool:
        return self.ledger.round_state(round_).is_complete

    def queued(self) -> list[tuple[int, int]]:
        """(round, position) of every queued group."""
        reader = MemorySampleQueue(run_id="run", max_groups=100, state=self.state)
        claimed = reader.claim(max_groups=100, timeout_seconds=0)
        return sorted((item.group.round, item.group.position) for item in claimed)

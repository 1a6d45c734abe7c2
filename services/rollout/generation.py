"""The generation loop: keeps the engine busy with groups of open rounds, and no others."""

import asyncio
import logging
import time

from services.common.prompt_ledger import PromptLease, PromptLedger
from services.rollout.engine import Engine
from services.rollout.group_making import GroupMaker
from services.rollout.staleness import newest_open_round
from services.rollout.tally import Tally

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 0.05


class GenerationLoop:
    """Leases prompts and has them made into groups, at most `max_groups_in_flight` at a time."""

    def __init__(
        self,
        *,
        worker: str,
        engine: Engine,
        ledger: PromptLedger,
        maker: GroupMaker,
        max_lag_versions: int,
        num_rounds: int,
        max_groups_in_flight: int,
        tally: Tally,
    ) -> None:
        self._worker = worker
        self._engine = engine
        self._ledger = ledger
        self._maker = maker
        self._max_lag_versions = max_lag_versions
        self._num_rounds = num_rounds
        self._max_groups_in_flight = max_groups_in_flight
        self._tally = tally
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until it is cancelled; leases that are out then go back.

        Raises:
            FurlongError: a group failed for a reason that repeating does not cure.
        """
        logger.info("generation started", extra={"worker": self._worker})
        try:
            while True:
                started = time.monotonic()
                is_busy = bool(self._in_flight)
                leases = await self._lease_more()
                self._start(leases)
                await self._settle_finished(wait_seconds=_IDLE_SECONDS)
                if is_busy:
                    self._tally.add_busy_seconds(time.monotonic() - started)
        finally:
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, return_exceptions=True)

    async def _lease_more(self) -> list[PromptLease]:
        version = self._engine.version
        free = self._max_groups_in_flight - len(self._in_flight)
        if version is None or free <= 0:
            return []
        max_round = newest_open_round(
            version_step=version.step, max_lag_versions=self._max_lag_versions, num_rounds=self._num_rounds
        )
        return await asyncio.to_thread(self._ledger.lease, worker=self._worker, max_round=max_round, max_prompts=free)

    def _start(self, leases: list[PromptLease]) -> None:
        self._in_flight |= {asyncio.create_task(self._maker.make(lease)) for lease in leases}
        self._tally.set_groups_in_flight(len(self._in_flight))

    async def _settle_finished(self, *, wait_seconds: float) -> None:
        if not self._in_flight:
            await asyncio.sleep(wait_seconds)
            return
        finished, self._in_flight = await asyncio.wait(
            self._in_flight, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        self._tally.set_groups_in_flight(len(self._in_flight))
        for task in finished:
            task.result()

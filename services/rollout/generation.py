"""The generation loop: keeps the engine busy with groups of open rounds, and no others."""

import asyncio
import logging
import time
from collections.abc import Collection

from services.common.errors import UnavailableError
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
        has_surplus: bool,
        max_groups_in_flight: int,
        tally: Tally,
    ) -> None:
        """The loop.

        Args:
            has_surplus: rounds are over-sampled, so groups may have to be stopped while they are made.
        """
        self._worker = worker
        self._engine = engine
        self._ledger = ledger
        self._maker = maker
        self._max_lag_versions = max_lag_versions
        self._num_rounds = num_rounds
        self._has_surplus = has_surplus
        self._max_groups_in_flight = max_groups_in_flight
        self._tally = tally
        self._in_flight: dict[asyncio.Task[None], PromptLease] = {}

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
                await self._stop_surplus()
                leases = await self._lease_more()
                self._start(leases)
                await self._settle_finished(wait_seconds=_IDLE_SECONDS)
                if is_busy:
                    self._tally.add_busy_seconds(time.monotonic() - started)
        finally:
            await self._stop(self._in_flight)
            self._give_back_all()

    async def _stop_surplus(self) -> None:
        """Stops the groups whose leases are no longer held; the engine drops their requests."""
        if not (self._has_surplus and self._in_flight):
            return
        void = set(await asyncio.to_thread(self._ledger.no_longer_held, list(self._in_flight.values())))
        # A group that is being settled ends its own lease, and counts itself.
        surplus = [task for task, lease in self._in_flight.items() if lease in void and self._maker.may_stop(lease)]
        await self._stop(surplus)
        stopped = [task for task in surplus if task.cancelled()]
        for task in stopped:
            del self._in_flight[task]
        if stopped:
            self._tally.add_surplus(len(stopped))
            logger.info("surplus stopped", extra={"num_groups": len(stopped)})

    async def _stop(self, tasks: Collection[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_back_all(self) -> None:
        try:
            self._ledger.give_back(list(self._in_flight.values()))
        except UnavailableError as error:
            # They run out by themselves, and what ended the loop must not be hidden by this.
            logger.warning("leases not given back", extra={"detail": str(error)})

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
        self._in_flight |= {asyncio.create_task(self._maker.make(lease)): lease for lease in leases}
        self._tally.set_groups_in_flight(len(self._in_flight))

    async def _settle_finished(self, *, wait_seconds: float) -> None:
        if not self._in_flight:
            await asyncio.sleep(wait_seconds)
            return
        finished, _ = await asyncio.wait(self._in_flight, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
            del self._in_flight[task]
        self._tally.set_groups_in_flight(len(self._in_flight))

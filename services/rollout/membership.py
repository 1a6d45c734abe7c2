"""Keeps the engine registered with the weights service, also after a quarantine or a restart of that service."""

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from services.common.errors import FurlongError
from services.common.records import PolicyVersion
from services.weights.published import EngineRecord
from services.weights.transfer import EngineRankLayout

logger = logging.getLogger(__name__)


class EngineDirectory(Protocol):
    """The part of the weights service that knows the engines."""

    def register_engine(
        self, engine_id: str, receiver_address: str, layouts: Sequence[EngineRankLayout]
    ) -> PolicyVersion | None:
        """Offers an engine; the version it then serves, None when it waits for one."""
        ...

    def list_engines(self) -> tuple[EngineRecord, ...]:
        """Every engine's standing."""
        ...


class Membership:
    """One engine's standing in the weights service. `watch` runs in a thread of its own."""

    def __init__(
        self,
        directory: EngineDirectory,
        *,
        engine_id: str,
        receiver_address: str,
        layouts: Sequence[EngineRankLayout],
        period_seconds: float,
    ) -> None:
        self._directory = directory
        self._engine_id = engine_id
        self._receiver_address = receiver_address
        self._layouts = layouts
        self._period_seconds = period_seconds
        self._left = threading.Event()

    def join(self) -> None:
        """Registers the engine; it holds the committed version afterwards, if there is one to fetch.

        Raises:
            FurlongError: the weights service refused or cannot be reached.
        """
        version = self._directory.register_engine(self._engine_id, self._receiver_address, self._layouts)
        logger.info("engine registered", extra={"engine_id": self._engine_id, "policy_version": str(version)})

    def watch(self) -> None:
        """Joins again whenever the engine is quarantined or unknown, until `leave`; failures are tried again."""
        while not self._left.wait(self._period_seconds):
            try:
                if not self._is_member():
                    self.join()
            except FurlongError as error:
                logger.warning("engine not registered", extra={"engine_id": self._engine_id, "detail": str(error)})

    def leave(self) -> None:
        """Ends `watch`."""
        self._left.set()

    def _is_member(self) -> bool:
        return any(
            record.engine_id == self._engine_id and not record.is_quarantined
            for record in self._directory.list_engines()
        )

"""Both prompt ledgers behind one face, with leases that expire on demand."""

import uuid

from services.common.memory_prompt_ledger import MemoryPromptLedger
from services.common.redis_prompt_ledger import RedisPromptLedger

LEASE_SECONDS = 60.0


class MemoryLedgers:
    """Ledgers of one run with a clock that moves on demand."""

    def __init__(self, *, groups, max_prompts, over_sampling=0):
        self._now = 0.0
        self.ledger = MemoryPromptLedger(
            run_id="run",
            groups_per_round=groups,
            max_prompts_per_round=max_prompts,
            lease_seconds=LEASE_SECONDS,
            clock=lambda: self._now,
            over_sampling_prompts=over_sampling,
        )

    def reopen(self):
        return self.ledger

    def expire_all(self):
        self._now += LEASE_SECONDS


class RedisLedgers:
    """Ledgers of one run, whose leases can be made to expire without waiting."""

    def __init__(self, client, *, groups, max_prompts, over_sampling=0):
        self._client, self._groups, self._max_prompts = client, groups, max_prompts
        self._over_sampling = over_sampling
        self._run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.ledger = self.reopen()

    def reopen(self):
        return RedisPromptLedger(
            self._client,
            run_id=self._run_id,
            groups_per_round=self._groups,
            max_prompts_per_round=self._max_prompts,
            lease_seconds=LEASE_SECONDS,
            over_sampling_prompts=self._over_sampling,
        )

    def expire_all(self):
        key = f"furlong:{self._run_id}:ledger:expiry"
        for lease_id in self._client.zrange(key, 0, -1):
            self._client.zadd(key, {lease_id: 1})


def lease(ledger, max_prompts=100, *, max_round=0, worker="a"):
    return ledger.lease(worker=worker, max_round=max_round, max_prompts=max_prompts)


def places(leases):
    return [(held.round, held.position) for held in leases]

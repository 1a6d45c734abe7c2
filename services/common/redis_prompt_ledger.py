"""The prompt ledger in Redis: every operation is one Lua script, timed by the server's clock."""

import redis

from services.common.prompt_ledger import PromptLease, RoundState, check_rewards, is_round_complete
from services.common.redis_connection import RedisReply, RedisScript


class RedisPromptLedger:
    """A PromptLedger in Redis, for any number of processes and threads.

    Keys, all below furlong:<run id>:ledger: are `cursors` (counts of positions and leases handed out, first open
    round), `leases` (lease id to round, position and worker), `expiry` (lease id by time), `surplus` ("position round"
    by position, with the round it was last in), and for each round `counts:<round>`, `accepted:<round>` and
    `returned:<round>` (positions to lease again).
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        run_id: str,
        groups_per_round: int,
        max_prompts_per_round: int,
        lease_seconds: float,
        over_sampling_prompts: int = 0,
    ) -> None:
        """The ledger of a run; a new process with the same run id goes on where the others are.

        Args:
            over_sampling_prompts: read by `lease` alone, so only workers need to give it.
        """
        self._groups_per_round = groups_per_round
        self._max_prompts_per_round = max_prompts_per_round
        self._over_sampling_prompts = over_sampling_prompts
        self._lease_milliseconds = max(1, round(lease_seconds * 1000))
        self._prefix = f"furlong:{run_id}:ledger:"
        self._cursors = f"{self._prefix}cursors"
        self._leases = f"{self._prefix}leases"
        self._expiry = f"{self._prefix}expiry"
        self._surplus = f"{self._prefix}surplus"
        self._lease = RedisScript(client, "ledger_lease")
        self._settle = RedisScript(client, "ledger_settle")
        self._held = RedisScript(client, "ledger_held")
        self._give_back = RedisScript(client, "ledger_give_back")
        self._reject = RedisScript(client, "ledger_reject")
        self._round = RedisScript(client, "ledger_round")

    def lease(self, *, worker: str, max_round: int, max_prompts: int) -> list[PromptLease]:
        """See PromptLedger.lease."""
        flat = self._lease.run(
            keys=[self._cursors, self._leases, self._expiry, self._surplus],
            arguments=[
                self._prefix,
                worker,
                max_round,
                max_prompts,
                self._groups_per_round,
                self._max_prompts_per_round,
                self._lease_milliseconds,
                self._over_sampling_prompts,
            ],
        )
        assert isinstance(flat, list)
        return [
            PromptLease(lease_id=_text(lease_id), round=_number(round_), position=_number(position))
            for lease_id, round_, position in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        ]

    def settle_accepted(self, lease: PromptLease, *, rewards: list[float]) -> bool:
        """See PromptLedger.settle_accepted."""
        return self._settle_as(lease, outcome="accepted", reason="", rewards=rewards)

    def settle_dropped(self, lease: PromptLease, *, reason: str, rewards: list[float]) -> bool:
        """See PromptLedger.settle_dropped."""
        return self._settle_as(lease, outcome="dropped", reason=reason, rewards=rewards)

    def no_longer_held(self, leases: list[PromptLease]) -> list[PromptLease]:
        """See PromptLedger.no_longer_held."""
        held = self._held.run(keys=[self._leases], arguments=[lease.lease_id for lease in leases])
        assert isinstance(held, list)
        return [lease for lease, is_held in zip(leases, held, strict=True) if is_held == 0]

    def give_back(self, leases: list[PromptLease]) -> None:
        """See PromptLedger.give_back."""
        self._give_back.run(
            keys=[self._leases, self._expiry], arguments=[self._prefix, "", *(lease.lease_id for lease in leases)]
        )

    def give_back_all(self, *, worker: str) -> int:
        """See PromptLedger.give_back_all."""
        return _number(self._give_back.run(keys=[self._leases, self._expiry], arguments=[self._prefix, worker]))

    def reject(self, *, round_: int, position: int, reason: str) -> bool:
        """See PromptLedger.reject."""
        keys = [self._cursors, self._leases, self._expiry]
        return self._reject.run(keys=keys, arguments=[self._prefix, round_, position, reason]) == 1

    def round_state(self, round_: int) -> RoundState:
        """See PromptLedger.round_state."""
        names = (f"{self._prefix}{kind}:{round_}" for kind in ("counts", "accepted", "returned"))
        reply = self._round.run(keys=list(names), arguments=[])
        assert isinstance(reply, list)
        pairs, positions, num_returned = reply
        assert isinstance(pairs, list)
        assert isinstance(positions, list)
        counts = {_text(name): _text(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        num_leased, num_dropped = int(counts.get("leased", "0")), int(counts.get("dropped", "0"))
        return RoundState(
            round=round_,
            num_accepted=len(positions),
            num_leased=num_leased,
            num_spent=len(positions) + num_leased + num_dropped,
            num_dropped=_by_reason(counts, "dropped:"),
            num_rejected=_by_reason(counts, "rejected:"),
            accepted_positions=tuple(sorted(_number(position) for position in positions)),
            reward_sum=float(counts.get("reward_sum", "0")),
            num_samples=int(counts.get("num_samples", "0")),
            num_surplus=int(counts.get("surplus", "0")),
            is_complete=is_round_complete(
                num_accepted=len(positions),
                num_dropped=num_dropped,
                num_open=num_leased + _number(num_returned),
                groups_per_round=self._groups_per_round,
                max_prompts_per_round=self._max_prompts_per_round,
            ),
        )

    def _settle_as(self, lease: PromptLease, *, outcome: str, reason: str, rewards: list[float]) -> bool:
        reply = self._settle.run(
            keys=[self._leases, self._expiry, self._surplus],
            arguments=[
                self._prefix,
                lease.lease_id,
                outcome,
                reason,
                repr(check_rewards(rewards)),
                len(rewards),
                self._groups_per_round,
            ],
        )
        return reply == 1


def _text(value: RedisReply) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def _number(value: RedisReply) -> int:
    assert isinstance(value, int | bytes)
    return int(value)


def _by_reason(counts: dict[str, str], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): int(count) for name, count in counts.items() if name.startswith(prefix)}

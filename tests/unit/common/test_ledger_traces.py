"""Random traces of operations: both prompt ledgers keep the invariants and give the same answers."""

from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.common.ledger_bookkeeping import Bookkeeping, operations
from tests.unit.common.prompt_ledgers import MemoryLedgers, RedisLedgers


@given(trace=operations, over_sampling=st.sampled_from([0, 1, 2]))
@settings(max_examples=400, deadline=None)
def test_any_trace_keeps_the_invariants_in_memory(trace, over_sampling):
    book = Bookkeeping(MemoryLedgers, groups=3, max_prompts=5, over_sampling=over_sampling)
    for operation, pick in trace:
        book.do(operation, pick)


@given(trace=operations, over_sampling=st.sampled_from([0, 2]))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_trace_has_the_same_answers_in_redis_as_in_memory(redis_client, trace, over_sampling):
    shape = {"groups": 3, "max_prompts": 5, "over_sampling": over_sampling}
    in_memory = Bookkeeping(MemoryLedgers, **shape)
    in_redis = Bookkeeping(partial(RedisLedgers, redis_client), **shape)
    for operation, pick in trace:
        in_memory.do(operation, pick)
        in_redis.do(operation, pick)
        assert in_redis.answers == in_memory.answers

import uuid
from functools import partial

import pytest

from services.common.embedded_valkey import EmbeddedValkey
from services.common.redis_connection import open_redis
from tests.unit.common.prompt_ledgers import MemoryLedgers, RedisLedgers


@pytest.fixture(scope="session")
def valkey(tmp_path_factory):
    """A real server for the whole session; tests keep apart by their run ids."""
    server = EmbeddedValkey(folder=tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_client(valkey):
    client = open_redis(valkey.url)
    yield client
    client.close()


@pytest.fixture
def run_id():
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["memory", "redis"])
def make_ledgers(request):
    if request.param == "memory":
        return MemoryLedgers
    client = request.getfixturevalue("redis_client")
    return partial(RedisLedgers, client)

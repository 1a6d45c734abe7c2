import uuid
from pathlib import Path

import pytest

SHM = Path("/dev/shm")


@pytest.fixture
def run_id():
    """A run of its own for each test; no segment of it may outlive the test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    assert [path.name for path in SHM.glob(f"furlong-{name}-*")] == []

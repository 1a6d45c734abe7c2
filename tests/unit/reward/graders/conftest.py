import pytest

from services.reward.graders import GraderSettings, make_graders


@pytest.fixture(scope="package")
def graders():
    """The graders as a recipe without wishes of its own gets them."""
    return make_graders(GraderSettings(require_single_box=False))

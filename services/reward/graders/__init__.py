"""The graders: what a request may ask for by name, and what a recipe decides about them."""

from services.reward.graders.catalog import GraderCatalog, make_graders
from services.reward.graders.settings import GraderSettings
from services.reward.graders.specification import GRADER_NAMES, GraderNameError, require_allowed

__all__ = ["GRADER_NAMES", "GraderCatalog", "GraderNameError", "GraderSettings", "make_graders", "require_allowed"]

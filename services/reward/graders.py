"""The graders by name, made from the settings that a worker gets on its command line."""

import json
from dataclasses import asdict, dataclass

from services.reward.boxed_grader import BoxedGrader
from services.reward.scorer import Grader

GRADER_NAMES = ("boxed",)
"""What a request may ask for."""


@dataclass(frozen=True, kw_only=True)
class GraderSettings:
    """The recipe's choices for all graders."""

    require_single_box: bool
    """The boxed grader gives several boxes no credit."""

    def to_json(self) -> str:
        """The settings as one command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "GraderSettings":
        """The settings of `to_json`."""
        return cls(**json.loads(text))


def make_graders(settings: GraderSettings) -> dict[str, Grader]:
    """One grader per name of GRADER_NAMES."""
    return {"boxed": BoxedGrader(require_single_box=settings.require_single_box)}

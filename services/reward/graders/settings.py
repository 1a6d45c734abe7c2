"""The recipe's choices for all graders, as a worker gets them on its command line."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class GraderSettings:
    """The recipe's choices for all graders."""

    require_single_box: bool
    """The boxed grader gives several boxes no credit."""
    require_think_end: bool = False
    """The boxed grader gives a response no credit in which no thinking ends."""
    external_graders: tuple[str, ...] = ()
    """The remote and custom graders that requests may name; they reach out of the process, so no others are run."""
    remote_timeout_seconds: float = 0.3
    """Most time for one HTTP request of a remote grader."""
    remote_retries: int = 2
    """Further requests after one that got no answer, or the answer to come again."""

    @property
    def needs_outside(self) -> bool:
        """Whether the graders need files or the network, which workers do not have otherwise."""
        return bool(self.external_graders)

    def to_json(self) -> str:
        """The settings as one command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "GraderSettings":
        """The settings of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "external_graders": tuple(fields["external_graders"])})

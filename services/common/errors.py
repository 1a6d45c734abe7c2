"""The error tree of all services; each class maps to one canonical gRPC code.

    FurlongError                INTERNAL
    ├── ConfigError             INVALID_ARGUMENT      the recipe or the environment cannot work; found at load
    ├── InvalidInputError       INVALID_ARGUMENT      a request, file or record breaks its contract
    ├── NotFoundError           NOT_FOUND
    ├── StateConflictError      FAILED_PRECONDITION   right request, wrong moment; the message says what to do first
    ├── ShortRoundError         FAILED_PRECONDITION   the prompts gave too few groups to train on
    ├── OverloadedError         RESOURCE_EXHAUSTED    try again later
    ├── UnavailableError        UNAVAILABLE           a peer, Redis or a process cannot be reached
    ├── DeadlineError           DEADLINE_EXCEEDED
    ├── TransferError           DATA_LOSS             bytes that do not match their digest, size or dtype
    └── AbortedError            ABORTED               given up by decision, such as an aborted version

A message gives the value seen, the value wanted and the remedy, in one line.
"""

import grpc


class FurlongError(Exception):
    """Base of every error that the services raise on purpose."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"


class ConfigError(FurlongError):
    """A recipe or an environment that cannot work."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "CONFIG"


class InvalidInputError(FurlongError):
    """A request, a file or a record that breaks its contract."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_INPUT"


class NotFoundError(FurlongError):
    """Something named does not exist."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class StateConflictError(FurlongError):
    """A request that is right at another moment."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STATE_CONFLICT"


class ShortRoundError(FurlongError):
    """A round whose prompts gave fewer groups than the recipe wants."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SHORT_ROUND"


class OverloadedError(FurlongError):
    """No room now; the caller may try again after retry_after_seconds."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(FurlongError):
    """A peer, Redis or a process that cannot be reached."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class DeadlineError(FurlongError):
    """Work that did not end in its time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE"


class TransferError(FurlongError):
    """Transferred bytes that do not match their digest, size or dtype."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "TRANSFER"


class AbortedError(FurlongError):
    """Work given up by decision."""

    code = grpc.StatusCode.ABORTED
    reason = "ABORTED"


ERROR_CLASSES: tuple[type[FurlongError], ...] = (
    ConfigError,
    InvalidInputError,
    NotFoundError,
    StateConflictError,
    ShortRoundError,
    OverloadedError,
    UnavailableError,
    DeadlineError,
    TransferError,
    AbortedError,
)
"""Every class with a reason of its own, for turning a reply's reason back into the class."""

"""The chat template: messages to the one text the model reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.common.errors import InvalidInputError

# GLM-4.5's prefix and role tags. The tiny models put no newline after a tag; it would be one more token to learn.
_PREFIX = "[gMASK]<sop>"
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    """system, user or assistant."""
    content: str
    """What is said."""


def render_chat(messages: Sequence[ChatMessage]) -> str:
    """The conversation as text that ends where the assistant begins its reply.

    Raises:
        InvalidInputError: there is no message, or one has an unknown role.
    """
    if not messages:
        raise InvalidInputError("the list of chat messages is empty; wanted at least one user message")
    for message in messages:
        if message.role not in _ROLES:
            raise InvalidInputError(f"a chat message has the role {message.role!r}; wanted one of {', '.join(_ROLES)}")
    turns = "".join(f"<|{message.role}|>{message.content}" for message in messages)
    return f"{_PREFIX}{turns}<|assistant|>"


def render_question(text: str) -> str:
    """The text as the only user message: "[gMASK]<sop><|user|>TEXT<|assistant|>"."""
    return render_chat([ChatMessage(role="user", content=text)])

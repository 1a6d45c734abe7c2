import pytest

from services.common.errors import InvalidInputError
from services.common.prompts.chat import ChatMessage, render_chat, render_question


def test_question_is_wrapped_in_the_template():
    assert render_question("47+85") == "[gMASK]<sop><|user|>47+85<|assistant|>"


def test_turns_follow_each_other():
    messages = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="1+1?"),
        ChatMessage(role="assistant", content="2"),
        ChatMessage(role="user", content="2+2?"),
    ]
    assert render_chat(messages) == (
        "[gMASK]<sop><|system|>Be brief.<|user|>1+1?<|assistant|>2<|user|>2+2?<|assistant|>"
    )


def test_no_message_is_refused():
    with pytest.raises(InvalidInputError, match="empty"):
        render_chat([])


def test_unknown_role_is_named():
    with pytest.raises(InvalidInputError, match="role 'tool'; wanted one of system, user, assistant"):
        render_chat([ChatMessage(role="tool", content="")])

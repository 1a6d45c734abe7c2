import hypothesis.strategies as st
from hypothesis import given

from services.common.tiny_model.vocabulary import (
    byte_tokenizer,
    byte_vocabulary,
    task_tokenizer,
    task_vocabulary,
)

_TASK = task_tokenizer()
_BYTES = byte_tokenizer()


def test_task_vocabulary_has_its_entries_in_order():
    vocabulary = task_vocabulary()
    assert len(vocabulary) == len(set(vocabulary)) == 64
    assert vocabulary[:10] == (
        "<|endoftext|>", "<pad>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<think>", "</think>",
        "\\boxed{", "}",
    )  # fmt: skip
    assert "".join(vocabulary[10:35]) == "0123456789+-*=,;:%()>‹?. "
    assert vocabulary[63] == "<unused63>"


def test_byte_vocabulary_is_rounded_up_to_a_multiple_of_64():
    # 8 control and think tokens and 256 bytes make 264
    assert len(byte_vocabulary()) == len(set(byte_vocabulary())) == 320
    assert byte_vocabulary()[:8] == task_vocabulary()[:8]


def test_task_text_splits_into_the_longest_entries():
    text = "<think>231</think>\\boxed{132}<|endoftext|>"
    ids = _TASK.encode(text).ids
    # digit d has id 10 + d
    assert ids == [6, 12, 13, 11, 7, 8, 11, 13, 12, 9, 0]
    assert _TASK.decode(ids, skip_special_tokens=False) == text


@given(st.lists(st.sampled_from([token for token in task_vocabulary() if "<u" not in token])))
def test_task_text_round_trips(tokens):
    text = "".join(tokens)
    assert _TASK.decode(_TASK.encode(text).ids, skip_special_tokens=False) == text


@given(st.text())
def test_any_text_round_trips_through_bytes(text):
    ids = _BYTES.encode(text).ids
    assert _BYTES.decode(ids, skip_special_tokens=False) == text
    assert max(ids, default=0) < 264


def test_a_character_outside_ascii_takes_its_utf8_bytes():
    assert len(_BYTES.encode("é").ids) == 2
    assert len(_BYTES.encode("☃").ids) == 3

import json

import pytest

from services.common.errors import ConfigError, InvalidInputError
from services.common.prompts.jsonl import read_prompt_file
from services.common.prompts.tokenizer import Tokenizer
from services.common.tiny_model.vocabulary import byte_tokenizer, task_tokenizer

_BYTES = Tokenizer(byte_tokenizer())


def _read(path, *, tokenizer=_BYTES, input_key="prompt", label_key="label", max_prompt_tokens=100):
    return read_prompt_file(
        path, tokenizer=tokenizer, input_key=input_key, label_key=label_key, max_prompt_tokens=max_prompt_tokens
    )


def _file(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_string_and_message_prompts_are_rendered_the_same(tmp_path):
    path = _file(
        tmp_path,
        {"prompt": "12+34", "label": "46"},
        "",
        {"prompt": [{"role": "user", "content": "12+34", "step_loss_mask": 1}], "label": 46},
    )
    rows = _read(path)
    assert [row.prompt.text for row in rows] == ["[gMASK]<sop><|user|>12+34<|assistant|>"] * 2
    assert [row.prompt.label for row in rows] == ["46", "46"]
    assert [row.prompt.source for row in rows] == ["data.jsonl:1", "data.jsonl:3"]
    assert rows[0].prompt.token_ids == _BYTES.encode(rows[0].prompt.text)
    assert rows[1].question == "12+34"


def test_keys_are_chosen_by_name(tmp_path):
    rows = _read(_file(tmp_path, {"q": "1+1", "a": 2.5}), input_key="q", label_key="a")
    assert rows[0].prompt.label == "2.5"


def test_windows_line_ends_and_a_byte_order_mark_are_accepted(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "1+1", "label": "2"}\r\n{"prompt": "a\xe2\x80\xa8b", "label": "3"}\r\n')
    assert [row.prompt.label for row in _read(path)] == ["2", "3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r"data.jsonl:2: is no JSON"),
        ("[1, 2]", r"data.jsonl:2: is a JSON list; wanted an object"),
        ('{"prompt": "1+1"}', r"data.jsonl:2: has no key 'label' \(its keys: 'prompt'\)"),
        ('{"label": "2"}', r"data.jsonl:2: has no key 'prompt' .*--input-key"),
        ('{"prompt": 5, "label": "2"}', r"data.jsonl:2: the prompt is a JSON int; wanted a string or a list"),
        ('{"prompt": " ", "label": "2"}', r"data.jsonl:2: the prompt is empty"),
        ('{"prompt": [], "label": "2"}', r"data.jsonl:2: the list of chat messages is empty"),
        ('{"prompt": [{"role": "user"}], "label": "2"}', r"data.jsonl:2: a chat message is"),
        ('{"prompt": [{"role": "tool", "content": "x"}], "label": "2"}', r"data.jsonl:2: .*role 'tool'"),
        ('{"prompt": "1+1", "label": null}', r"data.jsonl:2: the label under 'label' is 'None'"),
        ('{"prompt": "1+1", "label": NaN}', r"data.jsonl:2: the label under 'label' is 'nan'"),
        ('{"prompt": "1+1", "label": true}', r"data.jsonl:2: the label under 'label' is 'True'"),
        ('{"prompt": "1+1", "label": ""}', r"data.jsonl:2: the label under 'label' is ''"),
        ('{"prompt": "\\ud800", "label": "2"}', r"data.jsonl:2: .*surrogate"),
    ],
)
def test_bad_line_is_named_by_number_with_the_reason(tmp_path, line, message):
    with pytest.raises(InvalidInputError, match=message):
        _read(_file(tmp_path, {"prompt": "1+1", "label": "2"}, line))


def test_prompt_that_the_tokenizer_cannot_encode_is_named_with_its_characters(tmp_path):
    path = _file(tmp_path, {"prompt": "1+1", "label": "2"}, {"prompt": "add 1", "label": "2"})
    with pytest.raises(InvalidInputError, match=r"data.jsonl:2: the tokenizer has no token for 'a', 'd' in"):
        _read(path, tokenizer=Tokenizer(task_tokenizer()))


def test_too_long_prompt_is_named_with_length_and_limit(tmp_path):
    # four template tokens and 97 bytes
    path = _file(tmp_path, {"prompt": "x" * 96, "label": "2"}, {"prompt": "x" * 97, "label": "2"})
    with pytest.raises(InvalidInputError, match=r"data.jsonl:2: the prompt has 101 tokens.*100"):
        _read(path)


def test_line_that_is_no_utf8_is_named(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "1", "label": "2"}\n{"prompt": "\xff", "label": "2"}\n')
    with pytest.raises(InvalidInputError, match=r"data.jsonl:2: is no UTF-8 text \(byte 13 "):
        _read(path)


def test_empty_file_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="has no lines"):
        _read(_file(tmp_path, ""))


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none.jsonl: cannot be read \(No such file"):
        _read(tmp_path / "none.jsonl")

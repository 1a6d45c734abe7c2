import pytest

from services.common.errors import ConfigError, InvalidInputError
from services.common.prompts.tokenizer import Tokenizer
from services.common.tiny_model.making import make_tiny_model
from services.common.tiny_model.vocabulary import byte_tokenizer, task_tokenizer


def test_folder_tokenizer_encodes_and_keeps_control_tokens(tmp_path):
    make_tiny_model("tiny-task", seed=0, folder=tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = tokenizer.encode("<|user|>1+2<|endoftext|>")
    assert ids == (4, 11, 20, 12, 0)
    assert tokenizer.decode(ids) == "<|user|>1+2<|endoftext|>"
    assert tokenizer.vocab_size == 64


def test_characters_outside_the_vocabulary_are_named_once_each():
    with pytest.raises(InvalidInputError, match=r"no token for 'é', 'x' in '4éé7x'"):
        Tokenizer(task_tokenizer()).encode("4éé7x")


def test_the_unknown_token_written_out_is_refused_too():
    with pytest.raises(InvalidInputError, match="'u', 'n', 'k'"):
        Tokenizer(task_tokenizer()).encode("<unk>")


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(InvalidInputError, match="surrogate"):
        Tokenizer(byte_tokenizer()).encode("a\ud800")


def test_empty_text_has_no_ids():
    assert Tokenizer(byte_tokenizer()).encode("") == ()
    assert Tokenizer(byte_tokenizer()).decode([]) == ""


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer.json: cannot be read \(No such file or directory\)"):
        Tokenizer.from_folder(tmp_path)


def test_broken_file_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer file"):
        Tokenizer.from_folder(tmp_path)

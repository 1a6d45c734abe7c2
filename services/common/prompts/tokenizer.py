"""The tokenizer of a model folder: strict text to ids, and ids to text with nothing left out."""

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from services.common.errors import ConfigError, InvalidInputError


class Tokenizer:
    """A tokenizer.json. Encoding refuses what the vocabulary cannot express; it never loses a character."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._unknown_id = _unknown_token_id(tokenizer)

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """The tokenizer of a model folder.

        Raises:
            ConfigError: the folder has no readable tokenizer.json.
        """
        path = folder / "tokenizer.json"
        try:
            return cls(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read ({error.strerror}); model.path must be a folder with tokenizer.json"
            ) from error
        except Exception as error:  # the library raises bare Exception for a file it cannot parse
            raise ConfigError(f"{path}: is no tokenizer file ({error}); replace it by the model's own") from error

    @property
    def vocab_size(self) -> int:
        """Number of entries; every id is below it."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text; control tokens written out in it become their one id, and none are added.

        Raises:
            InvalidInputError: characters that the vocabulary has no token for; the message names them.
        """
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidInputError(
                f"{_shortened(text)} holds half of a surrogate pair, which is no character; remove it"
            )
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        unknown = {
            character: None
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if token_id == self._unknown_id
            for character in text[start:end]
        }
        if unknown:
            raise InvalidInputError(
                f"the tokenizer has no token for {', '.join(repr(c) for c in unknown)} in {_shortened(text)}; "
                "remove them or choose a model whose tokenizer has them (model.preset=tiny-byte takes any text)"
            )
        return tuple(encoding.ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens written out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


def _unknown_token_id(tokenizer: tokenizers.Tokenizer) -> int | None:
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_token") is not None:
        token_id = tokenizer.token_to_id(model["unk_token"])
        return None if token_id is None else int(token_id)
    unknown_id = model.get("unk_id")
    return None if unknown_id is None else int(unknown_id)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

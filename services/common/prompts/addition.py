"""The built-in task: two-digit additions, their split, and good and bad demonstrations of an answer."""

import hashlib
import random
import re
from dataclasses import dataclass

from services.common.tiny_model.vocabulary import END_TOKEN

# A digest byte below 51 of 256 holds out about a fifth: 2,009 of the 10,000 ordered prompts.
_HELD_OUT_BELOW = 51
_NUM_OPERANDS = 100
_WRONG_BY = (1, 2, 9, 10, 11, 20, 30)
_QUESTION = re.compile(r"\s*([0-9]{1,2})\s*\+\s*([0-9]{1,2})\s*")


@dataclass(frozen=True, kw_only=True)
class Addition:
    """One task."""

    left: int
    """First operand, 0 to 99."""
    right: int
    """Second operand, 0 to 99."""

    @property
    def total(self) -> int:
        """The right answer."""
        return self.left + self.right

    @property
    def question(self) -> str:
        """The text of the task, such as "07+85"."""
        return f"{self.left:02d}+{self.right:02d}"


def all_additions() -> list[Addition]:
    """The 10,000 ordered pairs."""
    return [Addition(left=left, right=right) for left in range(_NUM_OPERANDS) for right in range(_NUM_OPERANDS)]


def train_additions() -> list[Addition]:
    """The 7,991 tasks to train on."""
    return [addition for addition in all_additions() if not is_held_out(split_key(addition))]


def held_out_additions() -> list[Addition]:
    """The 2,009 tasks never trained on, in an order that does not follow the operands."""
    held_out = [addition for addition in all_additions() if is_held_out(split_key(addition))]
    random.Random(123).shuffle(held_out)
    return held_out


def split_key(addition: Addition) -> str:
    """The same for both orders of the operands, so that a swapped order cannot leak."""
    return repr((min(addition.left, addition.right), max(addition.left, addition.right)))


def is_held_out(key: str) -> bool:
    """Whether a key falls into the held-out fifth."""
    return split_digest(key)[0] < _HELD_OUT_BELOW


def split_digest(key: str) -> bytes:
    """The digest that decides the split."""
    return hashlib.md5(key.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def parse_question(text: str) -> Addition | None:
    """The addition that a text asks for; None when it asks for something else."""
    match = _QUESTION.fullmatch(text)
    return Addition(left=int(match[1]), right=int(match[2])) if match else None


def good_reply(addition: Addition) -> str:
    """Thinks (the sum backwards, at least two digits), then answers right."""
    return f"<think>{f'{addition.total:02d}'[::-1]}</think>{_boxed(addition.total)}"


def bad_reply(addition: Addition, *, random_source: random.Random) -> str:
    """Does not think and guesses near the right answer, never below zero.

    A sum smaller than the offset gives 0, which for the sum 0 happens to be right.
    """
    offset = random_source.choice((*_WRONG_BY, *(-size for size in _WRONG_BY)))
    return f"<think></think>{_boxed(max(0, addition.total + offset))}"


def _boxed(answer: int) -> str:
    return f"\\boxed{{{answer}}}{END_TOKEN}"

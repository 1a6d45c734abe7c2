"""Demonstrations for the warm start: every batch is a function of the seed and the step alone."""

import random
from dataclasses import dataclass
from typing import Protocol

from services.common.prompts.addition import bad_reply, good_reply, train_additions
from services.common.prompts.chat import render_question
from services.common.prompts.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A prompt with a reply to imitate.

    Legend: P prompt tokens, T response tokens.
    """

    prompt_token_ids: tuple[int, ...]
    """[P] template included."""
    response_token_ids: tuple[int, ...]
    """[T] end token included."""


class DemonstrationSource(Protocol):
    """An endless, seeded stream of batches: the same on every rank and after a resume."""

    def batch(self, step: int, *, size: int, bad_share: float) -> list[Demonstration]:
        """The demonstrations of a warm-start step (from 0); bad_share is the chance of each one to be bad."""
        ...


class AdditionDemonstrations:
    """Demonstrations of the built-in additions, from the training split only."""

    def __init__(self, tokenizer: Tokenizer, *, seed: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._additions = train_additions()

    def batch(self, step: int, *, size: int, bad_share: float) -> list[Demonstration]:
        """Tasks drawn with replacement, each with a good or a bad reply."""
        # A string seed is hashed by random itself, so that it does not depend on the process.
        random_source = random.Random(f"demonstrations/{self._seed}/{step}")
        return [self._draw(random_source, bad_share) for _ in range(size)]

    def _draw(self, random_source: random.Random, bad_share: float) -> Demonstration:
        addition = random_source.choice(self._additions)
        is_bad = random_source.random() < bad_share
        reply = bad_reply(addition, random_source=random_source) if is_bad else good_reply(addition)
        return Demonstration(
            prompt_token_ids=self._tokenizer.encode(render_question(addition.question)),
            response_token_ids=self._tokenizer.encode(reply),
        )

"""The F1 score of the words that answer and label share, as SQuAD counts it (arXiv 1606.05250, evaluation script)."""

import re
import string
from collections import Counter

from services.reward.graders.boxed import MAX_EXTRACTED_LENGTH
from services.reward.graders.extraction import answer_part_of, last_box, without_end_of_turn
from services.reward.scorer import Judgement, Rule

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# These are right or wrong as a whole.
_WHOLE_ANSWERS = frozenset(("yes", "no", "noanswer"))


class OverlapGrader:
    """A Grader for short texts. Scores are from 0 to 1."""

    def __init__(self, *, is_boxed: bool) -> None:
        """With is_boxed the answer is the last box, otherwise everything after the thinking."""
        self._is_boxed = is_boxed

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        part = without_end_of_turn(answer_part_of(response)).strip()
        answer = (last_box(part) or "") if self._is_boxed else part
        if not answer:
            return Judgement(value=0.0, rule=Rule.NO_ANSWER)
        value = shared_words_f1(answer, label)
        return Judgement(value=value, rule=Rule.OVERLAP, extracted=answer[:MAX_EXTRACTED_LENGTH])


def shared_words_f1(answer: str, label: str) -> float:
    """The harmonic mean of the shares of each side's words that the other has; 0 if they share none."""
    answer, label = _normal(answer), _normal(label)
    if answer != label and (answer in _WHOLE_ANSWERS or label in _WHOLE_ANSWERS):
        return 0.0
    answer_words, label_words = answer.split(), label.split()
    num_shared = (Counter(answer_words) & Counter(label_words)).total()
    if num_shared == 0:
        return 0.0
    precision, recall = num_shared / len(answer_words), num_shared / len(label_words)
    return 2 * precision * recall / (precision + recall)


def _normal(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.casefold().translate(_PUNCTUATION)).split())

"""The weighted sum of several graders and terms."""

from collections.abc import Sequence

from services.reward.scorer import Grader, Judgement, Rule, judge


class MixGrader:
    """A Grader whose score is the sum of weight times score; a part that fails adds 0 and its error."""

    def __init__(self, terms: Sequence[tuple[float, Grader]]) -> None:
        """Takes pairs of weight and grader."""
        self._terms = tuple(terms)

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade. The answer shown is the first that a part found."""
        judgements = [judge(grader, prompt=prompt, response=response, label=label) for _, grader in self._terms]
        return Judgement(
            value=sum(weight * part.value for (weight, _), part in zip(self._terms, judgements, strict=True)),
            rule=Rule.MIX,
            extracted=next((part.extracted for part in judgements if part.extracted), ""),
            error="; ".join(part.error for part in judgements if part.error),
        )

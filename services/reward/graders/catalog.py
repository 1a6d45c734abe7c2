"""The graders by name: plain ones at once, remote, custom and mixed ones when they are first asked for."""

from collections.abc import Iterator, Mapping

from services.reward.graders.answer_line import AnswerLineGrader, BoxedLineGrader, StrictBoxGrader
from services.reward.graders.boxed import BoxedGrader, MathGrader
from services.reward.graders.comparison import warm_up
from services.reward.graders.custom import CustomGrader
from services.reward.graders.exact import ExactGrader
from services.reward.graders.mix import MixGrader
from services.reward.graders.multiple_choice import MultipleChoiceGrader
from services.reward.graders.overlap import OverlapGrader
from services.reward.graders.remote import RemoteGrader
from services.reward.graders.settings import GraderSettings
from services.reward.graders.specification import (
    FORMAT_TERM,
    LENGTH_PREFIX,
    REMOTE_PREFIX,
    is_custom,
    is_remote,
    length_bounds,
    require_allowed,
    terms_of,
)
from services.reward.graders.terms import FormatTerm, LengthTerm
from services.reward.scorer import Grader

# Names come from requests; a client that sends ever new mixes costs no memory.
_MAX_KEPT = 256


class GraderCatalog(Mapping[str, Grader]):
    """A grader for every name that the settings allow. Iterates over what has been made so far."""

    def __init__(self, settings: GraderSettings) -> None:
        self._settings = settings
        self._graders: dict[str, Grader] = {
            "boxed": BoxedGrader(
                require_single_box=settings.require_single_box, require_think_end=settings.require_think_end
            ),
            "math": MathGrader(),
            "dapo": AnswerLineGrader(),
            "dapo:boxed": BoxedLineGrader(),
            "dapo:strict": StrictBoxGrader(),
            "f1": OverlapGrader(is_boxed=False),
            "f1:boxed": OverlapGrader(is_boxed=True),
            "gpqa": MultipleChoiceGrader(),
            "exact": ExactGrader(is_boxed=False),
            "exact:boxed": ExactGrader(is_boxed=True),
        }
        self._num_plain = len(self._graders)

    def __getitem__(self, name: str) -> Grader:
        """The grader.

        Raises:
            GraderNameError: there is none of that name, or the settings do not allow it.
        """
        grader = self._graders.get(name)
        if grader is None:
            grader = self._make(name)
            if len(self._graders) < self._num_plain + _MAX_KEPT:
                self._graders[name] = grader
        return grader

    def __iter__(self) -> Iterator[str]:
        return iter(self._graders)

    def __len__(self) -> int:
        return len(self._graders)

    def _make(self, name: str) -> Grader:
        require_allowed(name, self._settings.external_graders)
        if is_remote(name):
            return RemoteGrader(
                name.removeprefix(REMOTE_PREFIX),
                timeout_seconds=self._settings.remote_timeout_seconds,
                num_retries=self._settings.remote_retries,
            )
        if is_custom(name):
            return CustomGrader(name)
        return MixGrader([(term.weight, self._term(term.name)) for term in terms_of(name)])

    def _term(self, name: str) -> Grader:
        if name == FORMAT_TERM:
            return FormatTerm()
        if name.startswith(LENGTH_PREFIX):
            soft, hard = length_bounds(name)
            return LengthTerm(soft_characters=soft, hard_characters=hard)
        return self[name]


def make_graders(settings: GraderSettings) -> GraderCatalog:
    """The catalog, with everything loaded that grading needs: processes forked from this one open no files for it.

    Raises:
        CustomGraderError: a custom grader of the settings cannot be loaded.
    """
    catalog = GraderCatalog(settings)
    for name in settings.external_graders:
        assert catalog[name]
    warm_up()
    return catalog

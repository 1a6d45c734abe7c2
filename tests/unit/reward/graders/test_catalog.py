import subprocess
import sys

import pytest

from services.reward.graders import GRADER_NAMES, GraderNameError, GraderSettings, make_graders, require_allowed
from services.reward.graders.catalog import GraderCatalog
from services.reward.graders.custom import CustomGraderError
from services.reward.scorer import Rule

_FUNCTION = "tests.unit.reward.graders.user_functions"


def catalog(*external):
    return GraderCatalog(GraderSettings(require_single_box=False, external_graders=external))


def grade(graders, name, response, label="34"):
    return graders[name].grade(prompt="p", response=response, label=label)


@pytest.mark.parametrize("name", GRADER_NAMES)
def test_plain_graders_need_no_permission(graders, name):
    require_allowed(name, ())
    judgement = grade(graders, name, "C" if name in ("exact", "f1") else r"Answer: \boxed{C}", "C")
    assert (judgement.value, judgement.error) == (1.0, "")


@pytest.mark.parametrize(
    "name",
    [
        "", "box", "Boxed", "boxed:strict", "dapo:", "remote:", "remote:ftp://x/", "remote:http://", "mix:",
        "mix:boxed",
        "mix:1*", "mix:x*boxed", "mix:nan*boxed", "mix:inf*boxed", "mix:1*mix:1*boxed", "mix:1*length:5-5",
        "mix:1*length:9-5", "mix:1*length:x", "mix:" + ",".join(["1*boxed"] * 17), "length:1-2", "format", "a.b:c d",
        "x" * 2000,
    ],
)  # fmt: skip
def test_names_outside_the_grammar_are_refused(graders, name):
    with pytest.raises(GraderNameError, match="wanted"):
        require_allowed(name, ())
    with pytest.raises(GraderNameError):
        graders[name]


@pytest.mark.parametrize("name", ["remote:http://localhost:1/", "os:system", "mix:1*boxed,1*os.path:exists"])
def test_what_reaches_out_needs_permission(graders, name):
    with pytest.raises(GraderNameError, match=r"reaches out of the service.*reward\.external_graders"):
        graders[name]


def test_settings_survive_the_command_line():
    settings = GraderSettings(require_single_box=True, require_think_end=True, external_graders=("a.b:c",))
    assert GraderSettings.from_json(settings.to_json()) == settings
    assert settings.needs_outside
    assert not GraderSettings(require_single_box=True).needs_outside


def test_think_end_may_be_required():
    graders = make_graders(GraderSettings(require_single_box=False, require_think_end=True))
    assert grade(graders, "boxed", r"\boxed{34}").rule == Rule.NO_ANSWER
    assert grade(graders, "boxed", r"</think>\boxed{34}").value == 1


def test_mix_is_the_weighted_sum(graders):
    name = "mix:0.75*boxed,0.125*format,0.125*length:10-30"
    # 20 characters: right, one box, halfway between 10 and 30.
    response = r"so it is \boxed{34}."
    assert len(response) == 20
    judgement = grade(graders, name, response)
    assert (judgement.value, judgement.rule, judgement.extracted) == (0.9375, Rule.MIX, "34")
    # 11 characters more than the hard bound, two boxes.
    assert grade(graders, name, r"so \boxed{33} or so or \boxed{34}. Sure.").value == 0.75
    assert grade(graders, "mix:1*dapo,-0.5*boxed", r"Answer: \boxed{34}").value == 0.5


def test_part_of_a_mix_that_fails_adds_its_error():
    graders = catalog(f"{_FUNCTION}:raises")
    judgement = grade(graders, f"mix:0.5*boxed,0.5*{_FUNCTION}:raises", r"\boxed{34}")
    assert (judgement.value, judgement.error) == (0.5, "RuntimeError: no")


def test_function_is_called_with_the_sample():
    judgement = grade(catalog(f"{_FUNCTION}:share"), f"{_FUNCTION}:share", "abcd", "ab")
    assert (judgement.value, judgement.rule) == (0.5, Rule.CUSTOM)


@pytest.mark.parametrize("function", ["nothing", "not_a_number", "text"])
def test_function_without_a_finite_number_is_an_error(function):
    judgement = grade(catalog(f"{_FUNCTION}:{function}"), f"{_FUNCTION}:{function}", "x")
    assert (judgement.value, judgement.rule) == (0.0, Rule.ERROR)
    assert "wanted a finite number" in judgement.error


@pytest.mark.parametrize("path", ["no_such_module:f", f"{_FUNCTION}:missing", f"{_FUNCTION}:NUMBER"])
def test_missing_function_is_named_at_the_start(path):
    with pytest.raises(CustomGraderError, match=path):
        make_graders(GraderSettings(require_single_box=False, external_graders=(path,)))


def test_ever_new_mixes_are_not_kept():
    graders = catalog()
    for number in range(1000):
        assert graders[f"mix:{number}*boxed"]
    assert len(graders) <= len(GRADER_NAMES) + 256
    assert set(GRADER_NAMES) <= set(graders)


def test_mathematics_library_is_not_loaded_for_plain_numbers():
    code = (
        "import sys\n"
        "from services.reward.graders.comparison import compare\n"
        "assert compare('34', '34.0').is_equal and compare(r'\\frac12', '1/2').is_equal\n"
        "assert compare('(x+1)^2', 'x^2+2x+1').is_equal\n"
        "print(sorted({'sympy', 'math_verify', 'mpmath'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"

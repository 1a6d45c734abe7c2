"""The audit finds what is wrong, and nothing in real labels where FURLONG_DATA names files of them."""

import json
import os
from pathlib import Path

from services.reward.audit import REWRITINGS, audit_labels
from services.reward.graders.exact import ExactGrader

_LABELS = ["34", "-1234", r"\frac{1}{2}", ".35625", "(-2,1)", r"\text{even}", "x=5", "5", r"-\frac{35}{9}", "3, 5, 7"]


def real_labels():
    """The labels of each .jsonl file that FURLONG_DATA names, parted by colons; none without it."""
    paths = [Path(path) for path in os.environ.get("FURLONG_DATA", "").split(":") if path]
    return [[str(json.loads(line)["label"]) for line in path.read_text().splitlines()] for path in paths]


def test_labels_equal_their_rewritings_and_not_their_neighbours(graders):
    for labels in [_LABELS, *real_labels()]:
        report = audit_labels(labels, graders["boxed"])
        assert report.findings == ()
        assert report.num_checked["itself"] == len(labels)
        assert report.num_checked["neighbour"] >= 0.9 * len(labels)


def test_every_rule_fits_some_label_and_says_something_else():
    for name, rule in REWRITINGS.items():
        rewritten = [(label, rule(label)) for label in _LABELS]
        assert any(text is not None and (text != label or name == "itself") for label, text in rewritten), name


def test_grader_that_knows_no_spellings_is_found_out():
    report = audit_labels(["34", "35"], ExactGrader(is_boxed=True))
    # Only the label itself, with or without spaces around, is the same text.
    assert {finding.check for finding in report.findings} == {
        "math delimiters", "parenthesis delimiters", "full stop", "bold", "name", "decimal point", "doubled fraction",
    }  # fmt: skip
    assert report.findings[0].label == "34"


def test_neighbour_with_a_name_in_front_is_the_same_label():
    assert audit_labels(["x=5", "5"], ExactGrader(is_boxed=True)).num_checked["neighbour"] == 0

"""Service logs for people."""

from services.cli.log_lines import readable_lines


def test_an_event_becomes_a_line_with_its_fields_and_its_exception_unfolds() -> None:
    line = (
        '{"time": "T", "level": "ERROR", "service": "trainer", "logger": "x", "event": "stopped", "step": 3,'
        ' "exception": "Traceback\\n  here"}'
    )
    assert readable_lines([line]) == ["T ERROR stopped step=3", "Traceback", "  here"]


def test_other_lines_stay_as_they_are() -> None:
    assert readable_lines(["Killed", "[1, 2]", '{"a": 1}']) == ["Killed", "[1, 2]", '{"a": 1}']


def test_very_long_lines_are_cut() -> None:
    (line,) = readable_lines(["x" * 1000])
    assert line == "x" * 239 + "…"

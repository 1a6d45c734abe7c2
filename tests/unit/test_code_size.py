"""The limits of size in CONTRIBUTING.md hold for every file of ours."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_BODY_LINES = 50


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def long_bodies(source: str) -> list[tuple[str, int]]:
    """Functions whose body, docstring included and signature not, has too many lines."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    sizes = [(function.name, (function.end_lineno or 0) - function.body[0].lineno + 1) for function in functions]
    return [(name, size) for name, size in sizes if size > MAX_BODY_LINES]


def test_a_body_of_51_lines_is_too_long_and_one_of_50_is_not() -> None:
    lines = [f"    x{number} = 0" for number in range(50)]
    assert long_bodies("\n".join(["def f(", "    a: int,", ") -> None:", *lines])) == []
    assert long_bodies("\n".join(["def f() -> None:", *lines, "    y = 0"])) == [("f", 51)]


def test_no_file_has_more_than_400_lines() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources("services", "tests")}
    assert len(sizes) > 200
    assert {path: size for path, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_no_function_of_the_services_has_more_than_50_lines() -> None:
    found = {str(path.relative_to(ROOT)): long_bodies(path.read_text()) for path in sources("services")}
    assert {path: bodies for path, bodies in found.items() if bodies} == {}

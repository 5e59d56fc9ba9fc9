"""The one table of error codes holds every code that is used, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from inflight_client import ERROR_CODES, InflightError

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "client" / "inflight_client" / "errors.py"
SOURCES = sorted(
    path
    for room in ("inflight", "build_engines", "client", "loadtests")
    for path in (ROOT / room).rglob("*.py")
    if path != TABLE
)
TAKE_A_CODE = {"BuildError", "DeployError", "InflightError", "RequestError", "fail", "triton_error"}


def strings_in(node: ast.AST) -> Iterator[str]:
    """The strings that an expression may come to: a literal, or the two sides of a condition."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from strings_in(node.body)
        yield from strings_in(node.orelse)


def codes_raised(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in TAKE_A_CODE and (len(node.args) >= 2 or "code" in given):
            code = given.get("code", node.args[-1] if node.args else None)
        elif name == "TokenEvent" and isinstance(given.get("error"), ast.Tuple):
            code = given["error"].elts[1]  # type: ignore[attr-defined]
        else:
            continue
        assert code is not None
        yield from ((node.lineno, string) for string in strings_in(code))


def test_every_code_that_is_raised_stands_in_the_table_and_every_row_of_it_is_used() -> None:
    raises = re.compile(rf"\b({'|'.join(TAKE_A_CODE)}|TokenEvent)\(")
    found, strings = list[tuple[Path, int, str]](), set[str]()
    for path in SOURCES:
        text = path.read_text()
        strings.update(re.findall(r'"([a-z_]+)"', text))
        if raises.search(text):
            found += [(path, line, code) for line, code in codes_raised(ast.parse(text))]
    assert [f"{path}:{line}: {code}" for path, line, code in found if code not in ERROR_CODES] == []
    assert len(found) > 50, "the search finds nothing any more"
    assert [code for code in ERROR_CODES if code not in strings] == []


@pytest.mark.parametrize("code", ERROR_CODES)
def test_rows_read_well(code: str) -> None:
    row = ERROR_CODES[code]
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code), "the client finds codes by this pattern"
    assert row.meaning
    assert row.remedy
    assert not row.meaning.endswith(".")


def test_an_error_is_its_sentence_and_its_code() -> None:
    error = InflightError("the engine's process died", "engine_died")
    assert (str(error), error.code, error.retry) == ("the engine's process died", "engine_died", True)

"""The scanner takes exactly what RFC 8259 allows, however the text is split."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inflight.openai_api.tool_calls.json_scanner import JsonScanner
from tests.openai_api.tool_calls import answers
from tests.openai_api.tool_calls.answers import split

PIECES = (*'{}[]:,"\\', '"a"', "0", "-", "12", ".5", "e+1", "true", "null", "fals", " ", "\n", "\\u12", "\x01", "京")


def scan(text: str, sizes: tuple[int, ...] = (1 << 30,)) -> tuple[bool, bool, int]:
    """Whether the scanner is complete, whether it failed, and how much it read."""
    scanner, length = JsonScanner(64), 0
    for chunk in split(text, sizes):
        end = scanner.scan(chunk, 0, len(chunk))
        length += end
        if scanner.complete or scanner.failed:
            break
    return scanner.complete, scanner.failed, length


def is_json(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(text=st.lists(st.sampled_from(PIECES), max_size=12).map("".join), sizes=answers.sizes)
@example(text='{"a": [1, {"b": null}]}', sizes=[1])
@example(text="-0.5e+1", sizes=[2])
def test_agrees_with_the_standard_library(text: str, sizes: list[int]) -> None:
    array = f"[{text}]"
    complete, failed, length = scan(array)
    assert (complete and length == len(array)) == is_json(array)
    assert scan(array, tuple(sizes)) == (complete, failed, length)


@given(value=answers.values, sizes=answers.sizes)
def test_takes_every_value(value: object, sizes: list[int]) -> None:
    text = json.dumps(value)
    assert scan(f"{text} ", tuple(sizes)) == (True, False, len(text))


@pytest.mark.parametrize(
    ("text", "length"),
    [("[1,]", 3), ('{"a" 1}', 5), ('{"a":1,}', 7), ('["\n"]', 2), (r'["\x"]', 3), ("[01]", 2), ("[1.]", 3), ("NaN", 0)],
)
def test_stops_before_the_first_invalid_character(text: str, length: int) -> None:
    assert scan(text) == (False, True, length)

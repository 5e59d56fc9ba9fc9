"""What a model can make a parser hold and do is bounded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from inflight.openai_api.reasoning import ReasoningParser
from inflight.openai_api.tool_calls.formats import FORMATS
from inflight.openai_api.tool_calls.parser import MAX_ARGUMENTS, MAX_CALLS, MAX_NESTING, MAX_REST
from tests.openai_api.tool_calls.answers import EXAMPLE_OF, PARSERS, WRITERS, Call, read, split

START = '<tool_call>{"name": "f", "arguments": '


def hermes(answer: str, size: int = 1 << 30) -> list[str | Call]:
    return read(FORMATS["hermes"].parser(("f",)), split(answer, (size,)))


@pytest.mark.parametrize(("kind", "write"), WRITERS.values(), ids=WRITERS)
def test_the_last_call_of_the_limit_ends_the_answer(kind: Any, write: Callable[[list[Call]], str]) -> None:
    parser = kind(("f",))
    assert read(parser, [write([Call("f", "{}")] * (MAX_CALLS + 2))]) == [Call("f", "{}")] * MAX_CALLS
    assert parser.done


@pytest.mark.parametrize("size", [1000, 1 << 30])
@pytest.mark.parametrize("name_first", [True, False])
def test_long_arguments(size: int, name_first: bool) -> None:
    longest = '{"a":"' + "x" * (MAX_ARGUMENTS - 8) + '"}'
    longer = longest.replace("x", "xx", 1)
    if name_first:
        assert hermes(START + longest + "}", size) == [Call("f", longest)]
        assert hermes(START + longer + "}", size) == [Call("f", longer[:-1]), "}}"]
    else:
        call = '<tool_call>{"arguments": %s, "name": "f"}'
        assert hermes(call % longest, size) == [Call("f", longest)]
        assert hermes(call % longer, size) == [call % longer]


@pytest.mark.parametrize("size", [1, 1 << 30])
def test_deep_arguments(size: int) -> None:
    deepest = '{"a":' * MAX_NESTING + "1" + "}" * MAX_NESTING
    assert hermes(START + deepest + "}", size) == [Call("f", deepest)]
    head, tail = '{"a":' * MAX_NESTING, '{"a":' * 10_000
    assert hermes(START + head + tail, size) == [Call("f", head), tail]


@pytest.mark.parametrize("size", [1000, 1 << 30])
@pytest.mark.parametrize(
    "head",
    ["<tool_call>{", '<tool_call>{"', '<tool_call>{"name": "', '<tool_call>{"why": "', '<tool_call>{"why": 1'],
)
def test_the_rest_of_a_call_is_bounded(head: str, size: int) -> None:
    filling = " " if head.endswith("{") else "1"
    answer = head + filling * (MAX_REST + 1) + "<tool_call>" + START + "{}}"
    assert hermes(answer, size) == [answer[: -len(START + "{}}")], Call("f", "{}")]


def lines_run(parser: Any, chunks: Iterable[str]) -> int:
    """How many lines of Python a parser runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for chunk in chunks:
            parser.feed(chunk)
        parser.finish()
    finally:
        sys.settrace(before)
    return count


FLOODS = ("x", " ", "<", "{", "[", '{"a":')
OWN_FLOODS = {
    "hermes": ("<tool_call", '<tool_call>{"name": "f", "x": "'),
    "llama3_json": ("<|python_tag|>{",),
    "mistral": ("[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]f[CALL_ID]"),
    "qwen3_coder": ("</parameter>\n", "<function=f><parameter=a>1</parameter>"),
    "pythonic": ("[f(a='",),
    "reasoning": ("</thin", "<think>"),
}


@pytest.mark.parametrize("size", [1, 1 << 30])
@pytest.mark.parametrize("kind", [*PARSERS, "reasoning"])
def test_cost_is_linear(kind: str, size: int) -> None:
    make = PARSERS.get(kind, lambda: ReasoningParser(inside=True))

    def cost(flood: str, length: int) -> int:
        return lines_run(make(), split(flood * (length // len(flood)), (size,)))

    example = EXAMPLE_OF.get(kind) or '[{"name": "f", "parameters": {'
    beginnings = [example[: len(example) * part // 2] for part in (1, 2)]
    for flood in (*FLOODS, *OWN_FLOODS.get(kind, ()), *beginnings):
        _, few, more, many = (cost(flood, length) for length in (500, 500, 1_000, 2_000))  # the first compiles patterns
        assert many - more <= 3 * (more - few) + 1_000, flood  # quadratic: 4

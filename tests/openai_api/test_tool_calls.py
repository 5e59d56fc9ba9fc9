"""Tool calls and reasoning are found however the text is split, and what is no call stays text."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.reasoning import ReasoningParser
from inflight.openai_api.tool_calls.detect import FORMATS, detect_format
from inflight.openai_api.tool_calls.hermes import HermesParser
from inflight.openai_api.tool_calls.parser import MAX_ARGUMENTS as MAX_CALL_LENGTH
from inflight.openai_api.tool_calls.parser import MAX_CALLS
from inflight.openai_api.tool_calls.parser import MAX_NESTING as MAX_DEPTH
from inflight.openai_api.tool_calls.schema import NamedCallParser as NamedParser
from inflight.openai_api.tool_calls.schema import call_schema
from inflight.openai_api.tools import Tools

NAMES = ("get_weather", "get", "search-2")
PARSERS: dict[str, Any] = FORMATS
TAGS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    "<think>",
    "é",
    "日本",
    "👩‍👩‍👧",
]
PIECES = st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=5)), max_size=6).map("".join)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), PIECES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(PIECES, inner, max_size=3)),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(PIECES, VALUES, max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)


def written(form: str, calls: list[tuple[str, Any]], data: st.DataObject) -> str:
    """The calls as a model would write them."""
    ascii_only = data.draw(st.booleans())
    indent = data.draw(st.sampled_from([None, 1]))

    def call(name: str, arguments: Any, key: str) -> str:
        pairs = [("name", name), (key, arguments)]
        if data.draw(st.booleans()):
            pairs.reverse()
        return json.dumps(dict(pairs), ensure_ascii=ascii_only, indent=indent)

    if form == "hermes":
        return "\n".join(f"<tool_call>\n{call(*each, 'arguments')}\n</tool_call>" for each in calls)
    if form == "llama3_json":
        marker = data.draw(st.sampled_from(["", "<|python_tag|>"]))
        return marker + data.draw(st.sampled_from([";", "; ", "\n"])).join(call(*each, "parameters") for each in calls)
    marker = data.draw(st.sampled_from(["", "[TOOL_CALLS]", "[TOOL_CALLS] "]))
    if len(calls) == 1 and data.draw(st.booleans()):
        name, arguments = calls[0]
        return f"{marker}{name}{data.draw(st.sampled_from(['', '[ARGS]']))}{json.dumps(arguments)}"
    return f"{marker}[{', '.join(call(*each, 'arguments') for each in calls)}]"


def parsed(parser: Any, text: str, splits: list[int]) -> list[Event]:
    """The events of a text in these pieces; neighbouring ones of a kind are put together."""
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in splits)})
    events: list[Event] = []
    for start, end in pairwise(places):
        events += parser.feed(text[start:end])
    events += parser.finish()
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments):
            joined[-1] = ToolCallArguments(event.call, last.fragment + event.fragment)
        else:
            joined.append(event)
    return joined


def calls_of(events: list[Event]) -> list[tuple[str, Any]]:
    names = [event.name for event in events if isinstance(event, ToolCallStart)]
    arguments = ["" for _ in names]
    for event in events:
        if isinstance(event, ToolCallArguments):
            arguments[event.call] += event.fragment
    return [(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)]


@pytest.mark.parametrize("form", PARSERS)
@given(data=st.data(), calls=CALLS, splits=st.lists(st.integers(0, 500), max_size=30))
def test_calls_are_those_that_the_model_wrote(
    form: str, data: st.DataObject, calls: list[tuple[str, Any]], splits: list[int]
) -> None:
    text = written(form, calls, data)
    events = parsed(PARSERS[form](NAMES), text, splits)
    assert calls_of(events) == calls
    assert [event.call for event in events if isinstance(event, ToolCallStart)] == list(range(len(calls)))
    assert not [event for event in events if isinstance(event, TextDelta)]


@pytest.mark.parametrize("form", PARSERS)
@given(
    pieces=st.lists(
        st.one_of(
            st.sampled_from([*TAGS, *NAMES, '{"name": "get"', ', "arguments": {', "}", "]", ";", "[ARGS]", " ", "\n"])
        ),
        max_size=15,
    ),
    splits=st.lists(st.integers(0, 300), max_size=30),
)
def test_garbage_is_parsed_alike_however_it_is_split(form: str, pieces: list[str], splits: list[int]) -> None:
    text = "".join(pieces)
    events = parsed(PARSERS[form](NAMES), text, splits)
    assert events == parsed(PARSERS[form](NAMES), text, [])
    if not any(isinstance(event, ToolCallStart) for event in events):
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "a < b, <tool"),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get", "arg'),
        ("hermes", "<tool_call>no object</tool_call>"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("llama3_json", '{"a": 1}'),
        ("llama3_json", "Use {braces}."),
        ("mistral", "[1, 2, 3]"),
        ("mistral", "get it"),
        ("mistral", "[TOOL"),
    ],
)
def test_what_is_no_call_is_text(form: str, text: str) -> None:
    assert parsed(PARSERS[form](NAMES), text, list(range(len(text)))) == [TextDelta(text)]


def test_text_before_a_call_comes_first() -> None:
    text = 'I look it up.\n<tool_call>{"name": "get", "arguments": {"a": 1}}</tool_call>'
    assert parsed(HermesParser(NAMES), text, [3, 15, 20, 40]) == [
        TextDelta("I look it up.\n"),
        ToolCallStart(0, "get"),
        ToolCallArguments(0, '{"a": 1}'),
    ]


def test_without_parallel_calls_the_first_ends_the_answer() -> None:
    call = '<tool_call>{"name": "get", "arguments": {}}</tool_call>'
    parser = HermesParser(NAMES, parallel_tool_calls=False)
    assert calls_of(parsed(parser, call * 3, [])) == [("get", {})]
    assert parser.done


def test_arguments_are_given_out_as_they_arrive() -> None:
    parser = HermesParser(NAMES)
    assert parser.feed('<tool_call>{"name": "get", "arguments": {"a')[-1] == ToolCallArguments(0, '{"a')


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get", "arguments": ' + '{"a":' * (MAX_DEPTH + 5),
        '<tool_call>{"name": "get", "arguments": {"a": "' + "x" * (MAX_CALL_LENGTH + 5),
        '<tool_call>{"name": "get", "arguments": {}}</tool_call>' * (MAX_CALLS + 5),
        "<tool_call>" * 20000,
        "{" * 20000,
    ],
    ids=["deep", "long", "many", "markers", "braces"],
)
def test_an_endless_call_ends(text: str) -> None:
    for parser in PARSERS.values():
        events = parsed(parser(NAMES), text, list(range(0, len(text), 1000)))
        assert len([event for event in events if isinstance(event, ToolCallStart)]) <= MAX_CALLS


def test_a_named_call_is_the_whole_answer() -> None:
    assert calls_of(parsed(NamedParser("get"), '{"a": [1]}', [2, 5])) == [("get", {"a": [1]})]


def test_the_schema_of_a_required_call_is_the_union_of_all_tools() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    tools = Tools(
        (
            {"name": "get", "description": "", "parameters": {"$ref": "#/$defs/node", "$defs": {"node": node}}},
            {"name": "search-2", "description": "", "parameters": {"type": "object"}},
        ),
        "required",
    )
    schema = call_schema(tools)
    assert [each["properties"]["name"]["enum"] for each in schema["items"]["anyOf"]] == [["get"], ["search-2"]]
    assert schema["$defs"]["tool0"]["$ref"] == "#/$defs/tool0/$defs/node"
    assert schema["$defs"]["tool0"]["$defs"]["node"]["properties"]["next"]["$ref"] == "#/$defs/tool0/$defs/node"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("... <tool_call> ...", "hermes"),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", "mistral"),
        ('{% if tools %}{"name": function name, "parameters": {}}', "llama3_json"),
        ("{% for message in messages %}", None),
    ],
)
def test_the_format_is_that_of_the_template(template: str, expected: str | None) -> None:
    assert detect_format(template) == expected


@given(
    reasoning=PIECES.filter(lambda text: "</think>" not in text),
    content=PIECES.map(lambda text: text.lstrip("\n")),
    inside=st.booleans(),
    splits=st.lists(st.integers(0, 100), max_size=20),
)
def test_reasoning_is_separated(reasoning: str, content: str, inside: bool, splits: list[int]) -> None:
    text = ("" if inside else "<think>") + "\n" + reasoning + "\n</think>\n\n" + content
    events = parsed(ReasoningParser(inside), text, splits)
    found = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert found == reasoning.strip("\n")
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == content


@given(text=PIECES.filter(lambda text: not text.lstrip().startswith("<think>")), splits=st.lists(st.integers(0, 99)))
def test_an_answer_without_reasoning_is_content(text: str, splits: list[int]) -> None:
    assert parsed(ReasoningParser(), text, splits) == ([TextDelta(text)] if text else [])

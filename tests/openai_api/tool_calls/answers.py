"""Answers of models with calls in every format, and what a parser makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hypothesis import strategies as st

from inflight.openai_api.events import Event, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.tool_calls.detect import FORMATS
from inflight.openai_api.tool_calls.parser import ToolCallParser
from inflight.openai_api.tool_calls.schema import RequiredCallsParser

TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<think>",
    "</think>",
)


class Call(NamedTuple):
    name: str
    arguments: str


Item = str | Call


def read(parser: ToolCallParser, chunks: Iterable[str]) -> list[Item]:
    """The texts and calls of an answer in their order, put together from the events."""
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return joined([*events, *parser.finish()])


def joined(events: Sequence[Event]) -> list[Item]:
    items: list[Item] = []
    calls = 0
    for event in events:
        if isinstance(event, TextDelta):
            assert event.text
            if items and isinstance(items[-1], str):
                items[-1] += event.text
            else:
                items.append(event.text)
        elif isinstance(event, ToolCallStart):
            assert event.call == calls
            calls += 1
            items.append(Call(event.name, ""))
        else:
            last = items[-1]
            assert isinstance(event, ToolCallArguments)
            assert isinstance(last, Call)
            assert event.call == calls - 1
            assert event.fragment
            items[-1] = Call(last.name, last.arguments + event.fragment)
    return items


def split(text: str, sizes: Sequence[int]) -> list[str]:
    """Cut `text` into chunks of these sizes, which repeat."""
    chunks, start = list[str](), 0
    while start < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(text[start : start + size])
        start += size
    return chunks


names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=6)
texts = st.lists(
    st.one_of(
        st.sampled_from(("{", "}", "[", "]", '"', "\\", ";", ",", "\n", "日本語", "👩🏽‍🚀", "\u2028", "é", "\\u00e9")),
        st.sampled_from(TAGS),
        st.text(max_size=4),
    ),
    max_size=5,
).map("".join)
floats = st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        floats,
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
arguments = st.builds(
    json.dumps,
    st.dictionaries(texts, values, max_size=4),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from((None, 2)),
    separators=st.sampled_from((None, (",", ":"), (" , ", " : "))),
)
calls = st.lists(st.builds(Call, names, arguments), min_size=1, max_size=4)


def call_object(call: Call, key: str, *, name_first: bool = True) -> str:
    members = [f'"name": {json.dumps(call.name)}', f'"{key}": {call.arguments}']
    return "{" + ", ".join(members if name_first else members[::-1]) + "}"


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{call_object(call, 'arguments')}\n</tool_call>" for call in calls)


def hermes_arguments_first(calls: Sequence[Call]) -> str:
    return "".join(f"<tool_call>{call_object(call, 'arguments', name_first=False)}</tool_call>" for call in calls)


def hermes_without_end(calls: Sequence[Call]) -> str:
    return "".join(f"<tool_call>\n{call_object(call, 'arguments')}" for call in calls)


def llama(calls: Sequence[Call]) -> str:
    return "; ".join(call_object(call, "parameters") for call in calls)


def llama_tagged(calls: Sequence[Call]) -> str:
    return "<|python_tag|>" + ";".join('{"type": "function", ' + call_object(call, "parameters")[1:] for call in calls)


def mistral(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS] [" + ", ".join(call_object(call, "arguments") for call in calls) + "]"


def mistral_v11(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}{call.arguments}" for call in calls)


def mistral_v13(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[CALL_ID]9eYpTq0Zk[ARGS]{call.arguments}" for call in calls)


def mistral_without_tag(calls: Sequence[Call]) -> str:
    return mistral(calls).removeprefix("[TOOL_CALLS]")


def mistral_v11_without_tags(calls: Sequence[Call]) -> str:
    return "".join(call.name + call.arguments for call in calls)


def required(calls: Sequence[Call]) -> str:
    return "[" + ",\n".join(call_object(call, "parameters") for call in calls) + "]"


WRITERS: list[tuple[type[ToolCallParser], Callable[[Sequence[Call]], str]]] = [
    (FORMATS["hermes"], hermes),
    (FORMATS["hermes"], hermes_arguments_first),
    (FORMATS["hermes"], hermes_without_end),
    (FORMATS["llama3_json"], llama),
    (FORMATS["llama3_json"], llama_tagged),
    (FORMATS["mistral"], mistral),
    (FORMATS["mistral"], mistral_v11),
    (FORMATS["mistral"], mistral_v13),
    (FORMATS["mistral"], mistral_without_tag),
    (FORMATS["mistral"], mistral_v11_without_tags),
    (RequiredCallsParser, required),
]
PARSERS: dict[str, Callable[[], ToolCallParser]] = {
    **{name: partial(kind, ("f", "g")) for name, kind in FORMATS.items()},
    "required": lambda: RequiredCallsParser(("f", "g")),
    "one call": lambda: FORMATS["hermes"](("f", "g"), parallel_tool_calls=False),
}

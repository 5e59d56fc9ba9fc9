"""Answers of models with calls in every format, and what a parser makes of them."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from inflight.openai_api.events import Event, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.tool_calls.formats import FORMATS
from inflight.openai_api.tool_calls.parser import ToolCallParser
from inflight.openai_api.tool_calls.schema import RequiredCallsParser
from inflight.openai_api.tool_calls.xml_calls import XmlTags

TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<think>",
    "</think>",
    "<function=",
    "<parameter=",
    "</parameter>",
    "<arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|message|>",
    "<|channel|>",
    "<|end|>",
    "<|tool_call>",
    "call:",
    "<tool_call|>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "[f(",
    ")]",
)

# The rows of the tables in the documentation, of which those with three cells have a format, its models and an example.
_PAGE = (Path(__file__).parents[3] / "docs/conversations.md").read_text(encoding="utf-8")
_CELLS = [re.split(r"(?<!\\)\|", line)[1:-1] for line in _PAGE.splitlines() if line.startswith("|")]
DOCUMENTED = [[cell.strip().replace("\\|", "|").replace("⏎", "\n") for cell in row] for row in _CELLS]
EXAMPLE_OF = {
    name: row[2].strip("`") for row in reversed(DOCUMENTED) if len(row) == 3 and (name := row[0].strip("`")) in FORMATS
}


class Call(NamedTuple):
    name: str
    arguments: str


Item = str | Call
Write = Callable[[Sequence["Call"]], str]


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


def listed(start: str, end: str) -> Write:
    return lambda calls: start + "[" + ", ".join(call_object(call, "arguments") for call in calls) + "]" + end


def lines(calls: Sequence[Call]) -> str:
    return "<tool_calls>\n" + "\n".join(call_object(call, "arguments") for call in calls) + "\n</tool_calls>"


def cohere(calls: Sequence[Call]) -> str:
    objects = (
        f'{{"tool_call_id": "{number}", "tool_name": {json.dumps(call.name)}, "parameters": {call.arguments}}}'
        for number, call in enumerate(calls)
    )
    return f"<|START_ACTION|>[\n{', '.join(objects)}\n]<|END_ACTION|>"


def apertus(calls: Sequence[Call]) -> str:
    objects = (f"{{{json.dumps(call.name)}: {call.arguments}}}" for call in calls)
    return f"<|tools_prefix|>[{', '.join(objects)}]<|tools_suffix|>"


def each(start: str, end: str, before: str = "", after: str = "") -> Write:
    """Every call for itself, its name and arguments between these texts, where {} is the name."""
    return lambda calls: (
        before + "".join(start.replace("{}", call.name) + call.arguments + end for call in calls) + after
    )


DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n"
KIMI = "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>"
SOLAR = "<|tool_call:begin|>a1b2<|tool_call:name|>{}<|tool_call:args|>"
HARMONY = "<|start|>assistant<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"
HARMONY_ROLE = "<|start|>assistant to=functions.{}<|channel|>commentary json<|message|>"

JSON_WRITERS: dict[str, tuple[str, Write]] = {
    "hermes": ("hermes", hermes),
    "hermes arguments first": ("hermes", hermes_arguments_first),
    "hermes without end": ("hermes", hermes_without_end),
    "llama": ("llama3_json", llama),
    "llama tagged": ("llama3_json", llama_tagged),
    "mistral": ("mistral", mistral),
    "mistral v11": ("mistral", mistral_v11),
    "mistral v13": ("mistral", mistral_v13),
    "mistral without tag": ("mistral", mistral_without_tag),
    "mistral v11 without tags": ("mistral", mistral_v11_without_tags),
    "granite": ("granite", listed("<|tool_call|>", "")),
    "phi4": ("granite", listed("<|tool_call|>", "<|/tool_call|>")),
    "nemotron": ("nemotron", listed("<TOOLCALL>", "</TOOLCALL>")),
    "apriel": ("json_list", listed("<tool_calls>", "</tool_calls>")),
    "minimax m1": ("json_list", lines),
    "functools": ("functools", listed(" functools", "")),
    "cohere": ("cohere", cohere),
    "apertus": ("apertus", apertus),
    "deepseek v3": ("deepseek", each(DEEPSEEK_V3, "\n```<｜tool▁call▁end｜>\n", *DEEPSEEK)),
    "deepseek v3.1": ("deepseek", each("<｜tool▁call▁begin｜>{}<｜tool▁sep｜>", "<｜tool▁call▁end｜>", *DEEPSEEK)),
    "kimi": ("kimi_k2", each(KIMI, "<|tool_call_end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    "solar": ("solar", each(SOLAR, "<|tool_call:end|>")),
    "functionary": ("functionary", each("<function={}>", "</function>")),
    "harmony": ("harmony", each(HARMONY, "<|call|>")),
    "harmony role": ("harmony", each(HARMONY_ROLE, "<|call|>", "<|channel|>analysis<|message|><|end|>")),
}
WRITERS: dict[str, tuple[Callable[..., ToolCallParser], Write]] = {
    **{name: (FORMATS[kind].parser, write) for name, (kind, write) in JSON_WRITERS.items()},
    "required": (RequiredCallsParser, required),
}
PARSERS: dict[str, Callable[[], ToolCallParser]] = {
    **{name: partial(each.parser, ("f", "g")) for name, each in FORMATS.items()},
    "required": lambda: RequiredCallsParser(("f", "g")),
    "one call": lambda: FORMATS["hermes"].parser(("f", "g"), parallel_tool_calls=False),
}


# Formats whose arguments are not JSON.

Values = dict[str, Any]
ValueCall = tuple[str, Values]
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True).filter(lambda key: not keyword.iskeyword(key))
plain_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), floats, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)
value_calls = st.lists(st.tuples(names, st.dictionaries(keys, plain_values, max_size=4)), min_size=1, max_size=3)


def schema_of(values: Values) -> Any:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return {"properties": {key: {"type": kinds.get(type(value), "null")} for key, value in values.items()}}


def xml(name: str) -> Callable[[Sequence[ValueCall]], str]:
    tags: XmlTags = FORMATS[name].parser.keywords["xml"]  # type: ignore[attr-defined]
    line = "\n" if tags.lines else ""
    key_end = '" string="true' if name == "deepseek_dsml" else "</arg_key>\n" if "arg_key" in tags.key else ""

    def argument(key: str, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        end = key_end if isinstance(value, str) else key_end.replace("true", "false")
        return f"{tags.key}{key}{end}{tags.value}{line}{text}{line}{tags.value_end}\n"

    def write(calls: Sequence[ValueCall]) -> str:
        parts = [
            f"{tags.call}{function}{tags.close}\n{''.join(argument(*each) for each in values.items())}{tags.end}\n"
            for function, values in calls
        ]
        return "\n".join((*tags.sections[:1], *parts, *tags.section_ends[:1]))

    return write


def pythonic(calls: Sequence[ValueCall]) -> str:
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls
    )
    return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


def pythonic_without_tags(calls: Sequence[ValueCall]) -> str:
    return pythonic(calls).removeprefix("<|tool_call_start|>").removesuffix("<|tool_call_end|>")


def gemma(calls: Sequence[ValueCall]) -> str:
    def written(value: Any) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, list):
            return f"[{','.join(map(written, value))}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{written(each)}' for key, each in value.items())}}}"
        return "None" if value is None else json.dumps(value)

    return "".join(f"<|tool_call>call:{name}{written(arguments)}<tool_call|>" for name, arguments in calls)


XML = [name for name, each in FORMATS.items() if "xml" in getattr(each.parser, "keywords", ())]
VALUE_WRITERS: dict[str, tuple[str, Callable[[Sequence[ValueCall]], str]]] = {
    **{name: (name, xml(name)) for name in XML},
    "pythonic": ("pythonic", pythonic),
    "pythonic without tags": ("pythonic", pythonic_without_tags),
    "gemma4": ("gemma4", gemma),
}

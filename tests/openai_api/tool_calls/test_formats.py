"""Each format's calls are found, however the answer is split into chunks, and the rest is text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.reasoning import REASONING
from inflight.openai_api.tool_calls.formats import FORMATS, detect_format
from inflight.openai_api.tool_calls.harmony import HarmonyParser
from inflight.openai_api.tool_calls.parser import ToolCallParser
from inflight.openai_api.tool_calls.schema import NamedCallParser
from tests.openai_api.tool_calls import answers
from tests.openai_api.tool_calls.answers import (
    DOCUMENTED,
    EXAMPLE_OF,
    PARSERS,
    TAGS,
    VALUE_WRITERS,
    WRITERS,
    Call,
    Item,
    ValueCall,
    Write,
    read,
    schema_of,
    split,
)

Kind = Callable[..., ToolCallParser]


@pytest.mark.parametrize(("kind", "write"), WRITERS.values(), ids=WRITERS)
@settings(max_examples=settings().max_examples // 3)
@given(calls=answers.calls, sizes=answers.sizes)
def test_arguments_arrive_as_the_model_wrote_them(
    kind: Kind, write: Write, calls: list[Call], sizes: list[int]
) -> None:
    parser = kind({call.name for call in calls})
    assert read(parser, split(write(calls), sizes)) == calls
    assert (parser.calls, parser.done) == (len(calls), False)


@pytest.mark.parametrize(("name", "write"), VALUE_WRITERS.values(), ids=VALUE_WRITERS)
@settings(max_examples=settings().max_examples // 3)
@given(calls=answers.value_calls, sizes=answers.sizes)
def test_arguments_become_json(
    name: str, write: Callable[[Sequence[ValueCall]], str], calls: list[ValueCall], sizes: list[int]
) -> None:
    schemas = dict[str, dict[str, Any]]()
    for function, values in calls:
        schemas.setdefault(function, {"properties": {}})["properties"] |= schema_of(values)["properties"]
    assume(
        all(schema_of(values)["properties"].items() <= schemas[name]["properties"].items() for name, values in calls)
    )
    answer = write(calls)
    items = read(FORMATS[name].parser({name for name, _ in calls}, schemas=schemas), [answer])
    assert [(call.name, json.loads(call.arguments)) for call in items if isinstance(call, Call)] == calls
    assert len(items) == len(calls)
    assert read(FORMATS[name].parser({name for name, _ in calls}, schemas=schemas), split(answer, sizes)) == items


@pytest.mark.parametrize("name", FORMATS)
def test_the_example_of_each_format(name: str) -> None:
    parser, example = FORMATS[name].parser, EXAMPLE_OF[name]
    [call] = read(parser(("f",)), [example])
    assert isinstance(call, Call)
    assert (call.name, json.loads(call.arguments)) == ("f", {"city": "Bern"})
    assert read(parser(("f",)), example) == [call]
    if name not in ("llama3_json", "harmony"):  # whose calls begin an answer or a message
        assert read(parser(("f",)), f"I look.\n{example}\n\nDone.") == ["I look.\n", call, "Done."]


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.parser(()).openings])
def test_a_call_that_is_cut_is_no_text(name: str) -> None:
    parser, example = FORMATS[name].parser, EXAMPLE_OF[name]
    opening = max((each for each in parser(()).openings if example.startswith(each)), key=len)
    for end in range(len(opening), len(example)):
        parsed = parser(("f",))
        events = parsed.feed(example[:end]) + parsed.finish(cut=True)
        assert not [each for each in events if isinstance(each, TextDelta)]


@given(arguments=answers.arguments, sizes=answers.sizes)
def test_a_named_call_is_the_whole_answer(arguments: str, sizes: list[int]) -> None:
    parser = NamedCallParser("f")
    chunks = split(arguments, sizes)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    assert answers.joined([*events, *parser.finish()]) == [Call("f", arguments)]
    assert len(events) == len(chunks) + 1


@pytest.mark.parametrize(("kind", "write"), WRITERS.values(), ids=WRITERS)
def test_every_split_gives_the_same(kind: Kind, write: Write) -> None:
    calls = [Call("get_weather", '{"city": "\\u6771京 👩🏽‍🚀 </tool_call>}"}'), Call("f", "{}")]
    answer = write(calls)
    for at in range(len(answer) + 1):
        assert read(kind(("get_weather", "f")), [answer[:at], "", answer[at:]]) == calls
    assert read(kind(("get_weather", "f")), answer) == calls


GARBAGE = st.lists(
    st.one_of(
        st.sampled_from(
            (
                *TAGS,
                *(tag[:-1] for tag in TAGS),
                *'{}[]",:;\\ \n',
                '{"name": "f", "arguments": {',
                '{"parameters": {}, "name": "g"}',
                '"name"',
                '"arguments"',
                '"f"',
                "f",
                "{}",
                '{"a": [1, {"b": "c"}]}',
                "-1.5e3",
                "true",
                "nul",
                "京",
            )
        ),
        st.text(max_size=3),
    ),
    max_size=20,
).map("".join)


@pytest.mark.parametrize("kind", PARSERS)
@settings(max_examples=settings().max_examples // 3)
@given(answer=GARBAGE, sizes=answers.sizes)
def test_garbage_gives_the_same_in_any_chunks(kind: str, answer: str, sizes: list[int]) -> None:
    items = read(PARSERS[kind](), [answer])
    assert read(PARSERS[kind](), split(answer, sizes)) == items
    given_out = "".join(item if isinstance(item, str) else item.arguments for item in items)
    if not any(isinstance(item, Call) for item in items) and kind != "harmony":  # which has headers
        assert given_out == answer
    symbols = iter(answer)
    assert all(symbol in symbols for symbol in given_out)  # in their order, none twice


@pytest.mark.parametrize(
    ("kind", "write"),
    [each for each in WRITERS.values() if each[0] is not HarmonyParser],  # all of it is in messages
)
@pytest.mark.parametrize("names", [(), ("get",), ("g", "get_weathers")])
def test_unknown_tools_are_text(kind: Kind, write: Write, names: tuple[str, ...]) -> None:
    answer = write([Call("get_weather", '{"city": "京"}'), Call("f", "{}")])
    assert read(kind(names), answer) == [answer]


@pytest.mark.parametrize(("kind", "write"), WRITERS.values(), ids=WRITERS)
def test_one_call_ends_the_answer(kind: Kind, write: Write) -> None:
    parser = kind(("f",), parallel_tool_calls=False)
    assert read(parser, [write([Call("f", "{}"), Call("f", '{"a": 1}')]), " more"]) == [Call("f", "{}")]
    assert parser.done


F = Call("f", '{"a": 1}')
OBJECT = '{"name": "f", "arguments": {"a": 1}}'
TAGGED = f"<tool_call>{OBJECT}</tool_call>"
EXAMPLES: list[tuple[str, str, list[Item]]] = [
    ("hermes", "", []),
    ("hermes", " \n", [" \n"]),
    ("hermes", "a < b\n", ["a < b\n"]),
    ("hermes", "<tool", ["<tool"]),
    ("hermes", f"\n\n{TAGGED}\n", [F]),
    ("hermes", f"I look.\n\n{TAGGED}\n\nDone.\n", ["I look.\n\n", F, "Done.\n"]),
    ("hermes", f"<tool_call><tool_call>{OBJECT}", ["<tool_call>", F]),
    ("hermes", f"{TAGGED[:-1]}", [F]),
    ("hermes", f"{TAGGED[:-1]}x", [F, "</tool_callx"]),
    ("hermes", '<tool_call>{"name": "f", "arguments"', ['<tool_call>{"name": "f", "arguments"']),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [Call("f", "{}")]),
    ("hermes", '<tool_call>{"arguments": null, "name": "f"}</tool_call>', [Call("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": nul}', ['<tool_call>{"name": "f", "arguments": nul}']),
    ("hermes", '<tool_call>{"name": "f", "arguments": {x', ['<tool_call>{"name": "f", "arguments": {x']),
    ("hermes", '<tool_call>{"name": "f", "arguments": { \n"a": 1}}', [Call("f", '{ \n"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "id": "x', [F]),
    ("hermes", f"{TAGGED} <tool_call>no", [F, "<tool_call>no"]),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}', ['<tool_call>{"name": "f", "arguments": [1]}']),
    ("hermes", '<tool_call>{"arguments": {}, "name": "h"}', ['<tool_call>{"arguments": {}, "name": "h"}']),
    ("hermes", '<tool_call>{"name": "f", "name": "g"}', ['<tool_call>{"name": "f", "name": "g"}']),
    ("hermes", f'<tool_call>{{"why": [null, 1.5], {OBJECT[1:]}', [F]),
    ("hermes", '<tool_call>{"\\u006eame": "\\u0066", "arguments": {"a": 1}}', [F]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1]}', [Call("f", '{"a": 1'), "]}"]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', [Call("f", '{"a": 1')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1} x', [F, " x"]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\n"}}', [Call("f", '{"a": "'), '\n"}}']),
    ("llama3_json", OBJECT, [F]),
    ("llama3_json", f"\n{OBJECT};", [F]),
    ("llama3_json", f"{OBJECT} {OBJECT}", [F, F]),
    ("llama3_json", f"{OBJECT}; and", [F, "; and"]),
    ("llama3_json", f"See {OBJECT}", [f"See {OBJECT}"]),
    ("llama3_json", f"See <|python_tag|>{OBJECT}", ["See ", F]),
    ("llama3_json", f"{OBJECT}<|python_tag|>{OBJECT}", [F, F]),
    ("llama3_json", "<|python_tag|>print(1)", ["<|python_tag|>print(1)"]),
    ("llama3_json", '{"title": "A", "name": "f"}', ['{"title": "A", "name": "f"}']),
    ("llama3_json", f'{{"type": "function", {OBJECT[1:]}', [F]),
    ("mistral", f"Hm. [TOOL_CALLS] [{OBJECT}, {OBJECT}] ok", ["Hm. ", F, F, "ok"]),
    ("mistral", f"[TOOL_CALLS][{OBJECT}", [F]),
    ("mistral", f"[TOOL_CALLS][{OBJECT}, 5]", [F, ", 5]"]),
    ("mistral", f"[TOOL_CALLS][TOOL_CALLS][{OBJECT}]", [F]),
    ("mistral", f"So [{OBJECT}]", [f"So [{OBJECT}]"]),
    ("mistral", "f or g", ["f or g"]),
    ("mistral", "[1, 2]", ["[1, 2]"]),
    ("mistral", "[TOOL_CALLS][]", ["[TOOL_CALLS][]"]),
    ("mistral", f"[TOOL_CALLS] {OBJECT}", [F]),
    ("mistral", OBJECT, [OBJECT]),
    ("mistral", '[TOOL_CALLS]f [ARGS] {"a": 1}', [F]),
    ("mistral", '[TOOL_CALLS]f[ARG]{"a": 1}', ['[TOOL_CALLS]f[ARG]{"a": 1}']),
    ("mistral", '[TOOL_CALLS]f[TOOL_CALLS]f{"a": 1}', ["[TOOL_CALLS]f", F]),
    ("required", f" [{OBJECT}]\n", [F]),
    ("required", "Sorry [", ["Sorry ["]),
    ("one call", f"So {TAGGED}{TAGGED}", ["So ", F]),
]


@pytest.mark.parametrize(("kind", "answer", "items"), EXAMPLES)
def test_examples(kind: str, answer: str, items: list[Item]) -> None:
    assert read(PARSERS[kind](), [answer]) == items
    assert read(PARSERS[kind](), answer) == items


def test_events_come_as_soon_as_they_are_certain() -> None:
    parser = FORMATS["hermes"].parser(("f",))
    assert parser.feed("Hi <to") == [TextDelta("Hi ")]
    assert parser.feed("p> ") == [TextDelta("<top> ")]
    assert parser.feed('<tool_call>{"name": "f", "argum') == []
    assert parser.feed('ents": {"a') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a')]
    assert parser.feed('": 1}') == [ToolCallArguments(0, '": 1}')]
    assert parser.feed("}</tool_call>") == parser.finish() == []


def test_nothing_comes_after_the_end() -> None:
    parser = FORMATS["hermes"].parser(("f",))
    assert parser.finish() == parser.feed("text") == parser.finish() == []


HARMONY = [
    ("Hi.", [TextDelta("Hi.")]),
    (
        "<|channel|>analysis<|message|>It greets.<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|return|>",
        [ReasoningDelta("It greets."), TextDelta("Hello!")],
    ),
    (
        '<|channel|>commentary to=g code<|message|>{"a": 1}<|call|>',
        [TextDelta('{"a": 1}')],
    ),
    (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary"
        " <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=f<|message|>{",
        [
            TextDelta("I look."),
            ToolCallStart(0, "f"),
            ToolCallArguments(0, "{}"),
            TextDelta("{"),
        ],
    ),
    ("<|channel|>analysis<|message|>a<|end|><|start|>assist", [ReasoningDelta("a")]),
]


@pytest.mark.parametrize(("answer", "events"), HARMONY)
@pytest.mark.parametrize("size", [1, 3, 1 << 30])
def test_channels_of_harmony(answer: str, events: list[Event], size: int) -> None:
    parser = HarmonyParser(("f",))
    parsed = [event for chunk in split(answer, (size,)) for event in parser.feed(chunk)] + parser.finish()
    assert together(parsed) == events
    plain = HarmonyParser(("f",), reasoning=False)
    kept = [TextDelta(each.text) if isinstance(each, ReasoningDelta) else each for each in events]
    assert together([*plain.feed(answer), *plain.finish()]) == together(kept)


def together(events: Sequence[Event]) -> list[Event]:
    """The events with neighbours of one kind put together."""
    joined: list[Any] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(last, TextDelta | ReasoningDelta) and type(event) is type(last):
            joined[-1] = type(last)(last.text + event.text)
        else:
            joined.append(event)
    return joined


def typed(text: str, schema: Any) -> Any:
    parser = FORMATS["qwen3_coder"].parser(("f",), schemas={"f": {"properties": {"a": schema}}})
    [call] = read(parser, [f"<function=f><parameter=a>\n{text}\n</parameter></function>"])
    assert isinstance(call, Call)
    return json.loads(call.arguments)["a"]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("12", {"type": "string"}, "12"),
        ("12", {"type": "integer"}, 12),
        ("12", {"type": ["string", "number"]}, 12),
        ("1.5", {"type": ["integer", "string"]}, "1.5"),
        ("12", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "12"),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("12", {"enum": ["12", "13"]}, "12"),
        ("twelve", {"type": "integer"}, "twelve"),
        ("True", {"type": "boolean"}, True),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ('{"a": [1]}', None, {"a": [1]}),
        ("NaN", {"type": "number"}, "NaN"),
        ("[" * 200 + "]" * 200, {"type": "array"}, "[" * 200 + "]" * 200),
        ("{" * 10_000, {"type": "object"}, "{" * 10_000),
        ("a</parameter>b\n</function>?", {"type": "string"}, "a</parameter>b\n</function>?"),
        ("\ud83d", {"type": "string"}, "\ud83d"),
        ("", {"type": "string"}, ""),
        ("1", "broken", 1),
    ],
)
def test_an_argument_has_a_type_of_its_schema(text: str, schema: Any, value: Any) -> None:
    assert typed(text, schema) == value


@pytest.mark.parametrize(
    "text", ["a=nan", "a=g()", "a=1+", "1", "**{}", "a=" + "[" * 200 + "]" * 200, "a={1}", "a=b", "a=1e999"]
)
def test_what_is_no_literal_is_no_call(text: str) -> None:
    answer = f"[f({text})]"
    assert read(PARSERS["pythonic"](), [answer]) == read(PARSERS["pythonic"](), answer) == [answer]


QWEN = r"""{{- "Write json within <tool_call></tool_call>:\n<tool_call>\n{\"name\": <n>, \"arguments\": <a>}" }}"""
HERMES = """{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + call.arguments|tojson }}"""
QWEN_CODER = """{{- '<tool_call>\\n<function=' + call.name + '>\\n<parameter="arguments">' }}"""
GLM = """{{- '<tool_call>' + name + '\\n<arg_key>' + "arguments" + '</arg_key>' }}"""
LLAMA3 = "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] }}"
LLAMA31 = LLAMA3 + """{{- 'Respond in the format {"name": function name, "parameters": dictionary}.' }}"""
LLAMA32 = LLAMA3 + r"""{{- "Respond in the format {\"name\": function name, \"parameters\": dictionary}." }}"""
HERMES_ON_LLAMA3 = LLAMA31 + HERMES
MISTRAL = """{{- "[TOOL_CALLS] [" }}{{- '{"name": "' + tool.name + '", "arguments": ' }}"""
MISTRAL_V7 = """{{- "[TOOL_CALLS][" }}{{- '"id": "' + tool_call.id + '"}' }}"""
MISTRAL_V11 = """{{- "[TOOL_CALLS]" + tool.name + "[CALL_ID]" + tool.id + "[ARGS]" + arguments }}"""
DEEPSEEK_R1 = "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type']}}{{'<｜Assistant｜><think>\\n'}}"
APRIEL = "{{ '<tool_calls>[{\"name\": ... }]</tool_calls>; never <tool_call>' }}"
MINIMAX = """{{ ']<]minimax[>[<tool_call>' }}<invoke name="{{ call.name }}">"""
PHI = """<|system|><|tool|>[{"name": "f", "parameters": {}}]<|/tool|><|end|>"""
CHATML = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "hermes"),
        (HERMES, "hermes"),
        (HERMES_ON_LLAMA3, "hermes"),
        (LLAMA31, "llama3_json"),
        (LLAMA32, "llama3_json"),
        (MISTRAL, "mistral"),
        (MISTRAL_V7, "mistral"),
        (MISTRAL_V11, "mistral"),
        (QWEN_CODER, "qwen3_coder"),
        (GLM, "glm"),
        (APRIEL, "json_list"),
        (MINIMAX, None),
        (LLAMA3, None),
        (DEEPSEEK_R1, "deepseek"),
        (PHI, "granite"),
        (CHATML, None),
        ("", None),
    ],
)
def test_the_format_is_that_of_the_template(template: str, name: str | None) -> None:
    assert detect_format(template) == name
    assert name is None or name in FORMATS


def test_calls_in_python_whose_bracket_is_missing_leave_no_tag() -> None:
    items = read(PARSERS["pythonic"](), ['<|tool_call_start|>[f(a="b")<|tool_call_end|>'])
    assert items == [Call("f", '{"a": "b"}')]


@pytest.mark.parametrize(("written", "text"), [(r"\ud83d\ude00", "😀"), (r"\ud83d", "�")])
def test_escaped_halves_of_a_character_become_a_text(written: str, text: str) -> None:
    [call] = read(PARSERS["pythonic"](), [f'<|tool_call_start|>[f(a="{written}")]<|tool_call_end|>'])
    assert isinstance(call, Call)
    assert json.loads(call.arguments) == {"a": text}


def test_the_documentation_has_all_formats() -> None:
    assert EXAMPLE_OF.keys() == FORMATS.keys()
    for name, tags in REASONING.items():
        assert [f"`{name}`", f"`{tags.start}`", f"`{tags.end}`"] in DOCUMENTED

"""What clients send: conversations as they were answered, neutral values, and numbers in other forms."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from inflight_client.call import TokenIds
from inflight_client.sampling import Sampling

from inflight.openai_api.choice_parsers import ParserChoice
from inflight.openai_api.errors import ApiError
from inflight.openai_api.events import TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.fields import CHAT_FIELDS, COMPLETION_FIELDS, Tier
from inflight.openai_api.request import GenerationRequest, RequestDefaults, parse_request
from inflight.openai_api.responses import parse_responses
from inflight.openai_api.token_text import TextOffsets, TokenLogprob
from inflight.openai_api.tool_calls.formats import FORMATS
from inflight.openai_api.tool_calls.schema import RequiredCallsParser
from tests.fixtures.errors import raises

DEFAULTS = RequestDefaults(None, Sampling(temperature=1.0))
USER = {"role": "user", "content": "hi"}


def chat(*messages: dict[str, Any], **fields: Any) -> GenerationRequest:
    return parse_request({"model": "tea", "messages": [*messages] or [USER], **fields}, True, DEFAULTS)


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "save", "arguments": arguments}}


def read(message: dict[str, Any]) -> dict[str, Any]:
    """The message as the template gets it."""
    (prompt,) = chat(USER, message, USER).prompts
    assert isinstance(prompt, list)
    return dict(prompt[1])


@pytest.mark.parametrize(
    "message",
    [
        {"content": None},
        {},
        {"content": None, "refusal": "no"},
        {"content": [{"type": "refusal", "refusal": "no"}]},
        {"content": []},
        {"content": [{"type": "thinking", "thinking": "a"}]},
        {"content": "\0"},
        {"content": "", "tool_calls": []},
        {"content": None, "tool_calls": None},
    ],
)
def test_an_answer_without_text_is_an_empty_text(message: dict[str, Any]) -> None:
    found = read({"role": "assistant", **message})
    assert found["content"] == ""
    assert "tool_calls" not in found


@pytest.mark.parametrize("role", ["user", "tool", "system"])
@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": [{"type": "refusal", "refusal": "no"}]}])
def test_other_messages_need_a_text(role: str, content: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        chat({"role": role, **content})


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
def test_calls_are_kept_whatever_the_content_is(content: dict[str, Any]) -> None:
    assert read({"role": "assistant", "tool_calls": [call("{}")], **content})["tool_calls"][0]["function"]["name"]


@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [
        ('{"city": "Bern"}', {"city": "Bern"}),
        ("", {}),
        ('{"path": "C:\\\\Use', '{"path": "C:\\\\Use'),
        ("[1]", "[1]"),
        ("null", "null"),
        ("[" * 100_000, "[" * 100_000),
        ('{"a": [' + "1," * 50_000 + "1]}", None),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", None),
        ('{"a": NaN}', None),
        ('{"a": 1e999}', None),
        ('{"a": "\\ud800"}', None),
        ('{"a": 12345678901234567890123}', {"a": 12345678901234567890123}),
        ('{"a": "\0', '{"a": "'),
    ],
)
def test_arguments_that_are_no_object_stay_the_text_that_the_model_wrote(arguments: str, read_as: Any) -> None:
    found = read({"role": "assistant", "tool_calls": [call(arguments)]})
    assert found["tool_calls"][0]["function"]["arguments"] == (arguments if read_as is None else read_as)
    item = {"type": "function_call", "call_id": "c", "name": "save", "arguments": arguments}
    parsed = parse_responses({"model": "tea", "input": [USER, item, USER]})
    assert parse_request(parsed.chat, True, DEFAULTS).prompts


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [("max_tokens", 8.0, 8), ("n", 1.0, 1), ("seed", 42.0, 42), ("top_k", 40.0, 40), ("min_tokens", 1.0, 1)],
)
def test_whole_floats_are_integers(name: str, value: float, wanted: int) -> None:
    found = chat(**{name: value})
    assert getattr(found, name, None) == wanted or getattr(found.sampling, name) == wanted
    with raises(ApiError, "invalid_parameter"):
        chat(**{name: value + 0.5})


def test_whole_floats_are_token_ids() -> None:
    found = parse_request({"model": "tea", "prompt": [[5.0, 6], [7]]}, False, DEFAULTS)
    assert found.prompts == (TokenIds((5, 6)), TokenIds((7,)))
    with raises(ApiError, "invalid_token_ids"):
        parse_request({"model": "tea", "prompt": [5, 6.5]}, False, DEFAULTS)


def test_texts_of_a_response_s_parts_are_read() -> None:
    parts = [{"type": "thinking", "thinking": "a"}, {"type": "output_text", "text": "b"}]
    assert read({"role": "assistant", "content": parts})["content"] == "b"


@pytest.mark.parametrize("field", [*CHAT_FIELDS, "tolos", "streem"])
def test_no_error_suggests_what_is_refused(field: str) -> None:
    with pytest.raises(ApiError) as raised:
        chat(**{field + "x": 1})
    suggested = str(raised.value).partition("did you mean ")[2].strip("'?")
    assert not suggested or CHAT_FIELDS[suggested].tier is not Tier.REFUSED


def test_sampling_fields_of_vllm_reach_the_responses_api() -> None:
    parsed = parse_responses({"model": "tea", "input": "hi", "top_k": -1, "stop": ["x"], "min_p": 0, "logit_bias": {}})
    assert parse_request(parsed.chat, True, DEFAULTS).sampling.stop == ("x",)


def test_top_k_of_minus_one_is_off() -> None:
    assert chat(top_k=-1).sampling.top_k == chat(top_k=0).sampling.top_k == Sampling(top_k=-1).top_k


NEUTRAL = [
    (chat_route, name, value)
    for chat_route, table in ((True, CHAT_FIELDS), (False, COMPLETION_FIELDS))
    for name, field in table.items()
    for value in field.neutral
]


@pytest.mark.parametrize(("chat_route", "name", "value"), NEUTRAL)
def test_neutral_values_ask_for_nothing(chat_route: bool, name: str, value: Any) -> None:
    body = {"model": "tea", **({"messages": [USER]} if chat_route else {"prompt": "hi"})}
    plain = parse_request(body, chat_route, DEFAULTS)
    for same in (value, float(value) if type(value) is int else value, None):
        assert parse_request({**body, name: same}, chat_route, DEFAULTS) == plain


@pytest.mark.parametrize(("best_of", "refused"), [(2, False), (1, True), (3, True)])
def test_best_of_may_only_be_the_number_of_choices(best_of: int, refused: bool) -> None:
    body = {"model": "tea", "prompt": "hi", "n": 2, "best_of": best_of}
    with raises(ApiError, "unsupported_input") if refused else nullcontext():
        assert parse_request(body, False, DEFAULTS).n == 2


@pytest.mark.parametrize("name", ["guided_json", "guided_choice", "structured_outputs"])
def test_the_field_to_send_instead_is_named(name: str) -> None:
    with raises(ApiError, "unsupported_input", naming="response_format"):
        chat(**{name: {"type": "object"}})


def test_what_the_template_reads_reaches_it() -> None:
    kwargs = {"enable_thinking": False, "date_string": "today", "thinking_budget": 7, "controls": {"length": "short"}}
    found = chat(chat_template_kwargs=kwargs, reasoning_effort="high").chat_template_kwargs
    assert found == kwargs | {"reasoning_effort": "high"}
    parsed = parse_responses({"model": "tea", "input": "hi", "reasoning": {"effort": "low", "summary": "auto"}})
    assert parse_request(parsed.chat, True, DEFAULTS).chat_template_kwargs == {"reasoning_effort": "low"}


@pytest.mark.parametrize("kwargs", [{"chat_template": "x"}, {"tools": []}, {"a b": 1}, {"thinking": "x" * 100_000}])
def test_what_a_template_can_not_be_given_is_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        chat(chat_template_kwargs=kwargs)
    assert refused.value.param == "chat_template_kwargs"


ANSWER = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "save", "parameters": {"type": "object", "properties": {}}}}


def with_format(schema: Any, **fields: Any) -> ParserChoice:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    wanted = chat(tools=[TOOL], response_format=form, **fields)
    choice = ParserChoice(wanted, "")
    guide = choice.guided(wanted.sampling).guide
    assert guide is not None
    choice.schema = json.loads(guide.text)  # type: ignore[attr-defined]
    return choice


def test_beside_tools_an_answer_is_a_call_or_has_its_schema() -> None:
    choice = with_format(ANSWER)
    calls, answer = choice.schema["anyOf"]  # type: ignore[attr-defined]
    assert (calls["type"], answer) == ("array", {"$ref": "#/$defs/answer"})
    moved = choice.schema["$defs"]["answer"]  # type: ignore[attr-defined]
    assert moved["properties"]["tree"]["$ref"] == "#/$defs/answer/$defs/tree"
    for text, kind in (('{"tree": "oak"}', TextDelta), ('[{"name": "save", "parameters": {}}]', ToolCallStart)):
        parser = choice.parser()
        assert parser is not None
        events = [event for each in text for event in parser.feed(each)] + parser.finish()
        assert isinstance(events[0], kind)
        assert all(isinstance(event, TextDelta) for event in events) == (kind is TextDelta)


def test_beside_tools_another_form_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        with_format({"type": "array"})
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("text", ["[", '[\n{"name', '[{"name": "sa'])
def test_of_a_call_that_was_cut_nothing_is_text(text: str) -> None:
    for parser, answer in (
        (RequiredCallsParser(["save"]), text),
        (FORMATS["hermes"].parser(["save"]), f"<tool_call>\n{text[1:]}"),
    ):
        assert [*parser.feed(answer), *parser.finish(cut=True)] == []


def test_what_was_cut_and_is_no_call_stays() -> None:
    parser = FORMATS["hermes"].parser(["save"])
    found = [*parser.feed("I see. <tool_call>\n"), *parser.feed('{"name": "save", "arguments": {"a"')]
    found += parser.finish(cut=True)
    assert found[0] == TextDelta("I see. ")
    assert ToolCallArguments(0, '{"a"') in found


def tokens(*parts: bytes | None) -> list[TokenLogprob]:
    """A token for each part; None is a special one."""
    return [TokenLogprob("?", list(part or b"<end>"), 0.0, part is not None) for part in parts]


@pytest.mark.parametrize(
    ("parts", "text", "offsets"),
    [
        ((b"\xf0", b"\x9f", b"\x90", b"\x88", b"x", b"y"), "🐈xy", [0, 0, 0, 0, 1, 2]),
        ((b" tea", b" time"), "tea time", [0, 3]),
        ((b" tea", b" time"), " tea time", [0, 4]),
        ((b"a", None, b"b"), "ab", [0, 1, 1]),
    ],
)
def test_tokens_begin_where_their_text_does(parts: tuple[bytes | None, ...], text: str, offsets: list[int]) -> None:
    assert TextOffsets().take(tokens(*parts), text) == offsets
    streamed = TextOffsets()
    assert [place for each in tokens(*parts) for place in streamed.take([each], text) or ()] == offsets

"""Which parsers a request gets, and which special tokens stay in the text for them."""

from __future__ import annotations

from typing import Any

import pytest
from inflight_client.sampling import Sampling

from inflight.openai_api.choice_parsers import ParserChoice
from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.request import RequestDefaults, parse_request

TOOLS = [{"type": "function", "function": {"name": "f"}}]
THOUGHT = ReasoningDelta("Why?")
CALL = [ToolCallStart(0, "f"), ToolCallArguments(0, "{}")]
HARMONY = (
    "<|channel|>analysis<|message|>Why?<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>"
)


def choice(calls: str, reasoning: str | None = None, chat: bool = True, **fields: Any) -> ParserChoice:
    prompt = {"messages": [{"role": "user", "content": "?"}]} if chat else {"prompt": "?"}
    parsed = parse_request({"model": "m", **prompt, **fields}, chat, RequestDefaults(None, Sampling()))
    return ParserChoice(parsed, "", calls, reasoning)


@pytest.mark.parametrize(
    ("parsers", "answer", "events"),
    [
        (choice("mistral", "mistral", tools=TOOLS), "[THINK]Why?[/THINK][TOOL_CALLS]f[ARGS]{}", [THOUGHT, *CALL]),
        (choice("harmony", tools=TOOLS), HARMONY, [THOUGHT, *CALL]),
        (choice("harmony"), HARMONY, [THOUGHT, TextDelta("{}")]),
        (choice("harmony", "none"), HARMONY, [TextDelta("Why?"), TextDelta("{}")]),
        (choice("cohere", "cohere"), "<|START_THINKING|>Why?<|END_THINKING|>Hi", [THOUGHT, TextDelta("Hi")]),
    ],
)
def test_the_text_is_parsed(parsers: ParserChoice, answer: str, events: list[Event]) -> None:
    parser = parsers.parser()
    assert parser is not None
    assert [*parser.feed(answer), *parser.finish()] == events


@pytest.mark.parametrize(
    ("parsers", "kept"),
    [
        (choice("mistral", tools=TOOLS), ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]),
        (choice("mistral", "mistral"), ["[THINK]", "[/THINK]"]),
        (choice("mistral"), []),
        (choice("mistral", tools=TOOLS, tool_choice="required"), []),
        (choice("harmony"), ["<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"]),
        (choice("harmony", response_format={"type": "json_object"}), []),
        (choice("harmony", chat=False), []),
    ],
)
def test_special_tokens_stay_where_a_parser_needs_them(parsers: ParserChoice, kept: list[str]) -> None:
    assert all(tag in parsers.kept for tag in kept)
    assert bool(parsers.kept) == bool(kept)

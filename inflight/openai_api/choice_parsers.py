"""Chooses how the text of a choice becomes reasoning, tool calls and content."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Protocol

from inflight_client.sampling import Sampling

from inflight.openai_api.errors import ApiError
from inflight.openai_api.events import Event, TextDelta
from inflight.openai_api.reasoning import REASONING, ReasoningParser, detect_reasoning
from inflight.openai_api.response_format import schema_guide
from inflight.openai_api.tool_calls.formats import FORMATS, format_of
from inflight.openai_api.tool_calls.harmony import HarmonyParser
from inflight.openai_api.tool_calls.schema import (
    NamedCallParser,
    RequiredCallsParser,
    call_or_answer_schema,
    call_schema,
)
from inflight.openai_api.tools import Tools


class ChoiceParser(Protocol):
    """Parses the text of one choice; `done` once nothing more is wanted."""

    @property
    def done(self) -> bool: ...

    def feed(self, text: str) -> list[Event]: ...
    def finish(self, cut: bool = False) -> list[Event]: ...


FORMAT_UNKNOWN = {"x-inflight-tool-call-parser": "none"}
"""Headers of answers to requests with tools, if it is not known how the model writes calls."""


class AskedForm(Protocol):
    """The parts of a request that decide how its answers are parsed."""

    @property
    def chat(self) -> bool: ...
    @property
    def tools(self) -> Tools: ...
    @property
    def sampling(self) -> Sampling: ...


class ParserChoice:
    """The parsers of one request to a model with this chat template, or with the format and tags that options name.

    Raises ApiError for tools of a model whose format of calls is unknown.
    """

    def __init__(
        self, parsed: AskedForm, template: str, tool_call_parser: str | None = None, reasoning: str | None = None
    ) -> None:
        self._tools = parsed.tools
        name = format_of(template, tool_call_parser)
        must_call = parsed.tools.choice in ("required", "function")
        self._either = parsed.tools.active and not must_call and parsed.sampling.guide is not None
        if parsed.tools.active and not must_call and not self._either and name is None:
            raise ApiError(
                "the format in which this model calls tools is unknown; start the gateway with --tool-call-parser, or"
                " send tool_choice required",
                "unsupported_input",
                "tools",
                headers=FORMAT_UNKNOWN,
            )
        self.must_call = must_call
        self.lacks_format = bool(parsed.tools.functions) and name is None
        """Whether there are tools, and how the model writes calls is not known."""
        # A constrained answer has no place for reasoning.
        free = parsed.chat and not must_call and parsed.sampling.guide is None
        self._format = FORMATS[name] if name and free else None
        self._reasons = reasoning != "none"
        named = REASONING.get(reasoning or "")
        self.tags = (named or detect_reasoning(template)) if free and self._reasons else None
        if self._is_harmony:
            self.tags = None
        self.inside = False
        """Whether the prompt ends with the beginning of reasoning."""

    def guided(self, sampling: Sampling) -> Sampling:
        """Return the sampling parameters, with the schema of a call where there must be one, or may be one instead of
        an answer of a given form. Raises ApiError."""
        if self._either and sampling.guide is not None:
            answer = json.loads(sampling.guide.text or '{"type": "object"}') if "json" in sampling.guide.type else None
            if not isinstance(answer, dict) or answer.get("type") != "object":
                raise ApiError(
                    "beside tools, response_format can only ask for a JSON object; send another, or tool_choice none",
                    "unsupported_input",
                    "response_format",
                )
            return replace(sampling, guide=schema_guide(call_or_answer_schema(self._tools, answer), "response_format"))
        if not self.must_call:
            return sampling
        return replace(sampling, guide=schema_guide(call_schema(self._tools), "tools"))

    @property
    def kept(self) -> str:
        """The tags that the parsers need: those that are special tokens stay in the text."""
        calls = self._format.parser(()).tags if self._format and (self._tools.active or self._is_harmony) else ""
        return calls + "".join(self.tags or ())

    @property
    def _is_harmony(self) -> bool:
        return self._format is not None and self._format.parser is HarmonyParser

    def parser(self) -> ChoiceParser | None:
        """Return a new parser; None if all text is content."""
        calls = self._call_parser()
        reasoning = ReasoningParser(self.inside, self.tags) if self.tags else None
        return _Both(reasoning, calls) if reasoning and calls else reasoning or calls

    def _call_parser(self) -> ChoiceParser | None:
        tools = self._tools
        if self._is_harmony:  # with reasoning, also without tools
            names = tools.names if tools.active else ()
            return HarmonyParser(names, parallel_tool_calls=tools.parallel, reasoning=self._reasons)
        if not tools.active:
            return None
        if tools.named is not None:
            return NamedCallParser(tools.named)
        if self.must_call or self._either:
            return RequiredCallsParser(tools.names, parallel_tool_calls=tools.parallel)
        assert self._format is not None
        schemas = {each["name"]: each["parameters"] for each in tools.functions}
        return self._format.parser(tools.names, parallel_tool_calls=tools.parallel, schemas=schemas)


class _Both:
    """Reasoning first; calls are found in the rest."""

    def __init__(self, reasoning: ReasoningParser, calls: ChoiceParser) -> None:
        self._reasoning, self._calls = reasoning, calls

    @property
    def done(self) -> bool:
        return self._calls.done

    def feed(self, text: str) -> list[Event]:
        return self._through(self._reasoning.feed(text))

    def finish(self, cut: bool = False) -> list[Event]:
        return [*self._through(self._reasoning.finish(cut)), *self._calls.finish(cut)]

    def _through(self, events: list[Event]) -> list[Event]:
        through: list[Event] = []
        for event in events:
            through += self._calls.feed(event.text) if isinstance(event, TextDelta) else [event]
        return through

"""The Responses API, stateless: its requests as chat completions, and its answers and events from theirs.

Nothing is stored, so `store` must be false or absent, and a conversation is sent whole instead of by the id of an
earlier response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from inflight_client.results import Usage
from inflight_client.validation import shorten

from inflight.openai_api.errors import ApiError
from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.field_reader import read_body
from inflight.openai_api.fields import AS_IN_CHAT, RESPONSES_FIELDS
from inflight.openai_api.request import GenerationRequest, RequestDefaults, parse_request
from inflight.openai_api.response import ResponseHead
from inflight.openai_api.token_text import TokenLogprob

_TYPES: tuple[tuple[str, type, str], ...] = (
    ("instructions", str, "a text"),
    ("tools", list, "a list"),
    *((name, Mapping, "an object") for name in ("reasoning", "text", "metadata")),
)


@dataclass(frozen=True)
class ResponsesRequest:
    """The chat completion that answers a request, and what its response repeats."""

    chat: dict[str, Any]
    repeated: dict[str, Any]
    no_effect: tuple[str, ...]


def parse_responses(body: Any) -> ResponsesRequest:
    """Translate a body. Raises ApiError, which names the field; the chat completion is checked by its own parser."""
    reader = read_body(body, RESPONSES_FIELDS)
    values = reader.values
    for name, kind, described in _TYPES:
        if name in values and not isinstance(values[name], kind):
            raise ApiError(f"{name} must be {described}", "invalid_parameter", name)
    chat: dict[str, Any] = {name: values[name] for name in AS_IN_CHAT if name in values}
    instructions, tools = values.get("instructions"), values.get("tools", [])
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    chat["messages"] = messages + _messages(values.get("input"))
    if "max_output_tokens" in values:
        chat["max_tokens"] = reader.integer("max_output_tokens")
    if (effort := values.get("reasoning", {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if tools:
        chat["tools"] = [_tool(each) for each in tools]
    if "tool_choice" in values:
        chat["tool_choice"] = _tool_choice(values["tool_choice"])
    form = values.get("text", {}).get("format") or {"type": "text"}
    if not isinstance(form, Mapping):
        raise ApiError("text.format must be an object", "invalid_parameter", "text")
    if form.get("type") == "json_schema":
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": form.get("name", "schema"), "schema": form.get("schema")},
        }
    elif form.get("type") != "text":
        chat["response_format"] = dict(form)
    repeated = {
        "instructions": instructions,
        "metadata": values.get("metadata", {}),
        "tools": [{"strict": False, **each} for each in tools],
        "tool_choice": values.get("tool_choice", "auto"),
        "parallel_tool_calls": values.get("parallel_tool_calls", True),
        "temperature": values.get("temperature", 1.0),
        "top_p": values.get("top_p", 1.0),
        "max_output_tokens": values.get("max_output_tokens"),
        "text": {"format": form},
        "previous_response_id": None,
        "truncation": "disabled",
    }
    return ResponsesRequest(chat, repeated, reader.no_effect)


def parse_as_chat(
    body: Any, defaults: RequestDefaults
) -> tuple[GenerationRequest, Mapping[str, Any], Mapping[str, Any]]:
    """Return the request of a body, its chat completion, and what its response repeats. Raises ApiError."""
    parsed = parse_responses(body)
    chat = parse_request(parsed.chat, True, defaults)
    names = [name.replace("response_format", "text.format") for name in chat.no_effect]
    schemas = [name for name in names if name.startswith(("text.format.", "tools."))]
    return replace(chat, no_effect=(*parsed.no_effect, *schemas)), parsed.chat, parsed.repeated


def _messages(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError("input must be a text or a list of items", "invalid_parameter", "input")
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(value):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            content = _content(place, item.get("content"))
            messages.append({"role": item.get("role"), "content": content})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant":  # calls of one answer belong together
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            content = _content(place, item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind != "reasoning":  # earlier reasoning is not for the model
            raise ApiError(
                f"input[{place}] has the type {shorten(kind)}; send messages, function calls and their outputs",
                "unsupported_input",
                "input",
            )
    return messages


def _content(place: int, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    parts = []
    for part in value:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "refusal":
            parts.append({"type": "refusal"})
            continue
        if kind not in ("input_text", "output_text", "text"):
            raise ApiError(
                f"input[{place}] has a part of type {shorten(kind)}; only text can be sent",
                "unsupported_input",
                "input",
            )
        parts.append({"type": "text", "text": part.get("text")})
    return parts


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise ApiError(f"tools has {shorten(tool)}; only functions are supported", "unsupported_input", "tools")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("type") == "function" and "name" in value:
        return {"type": "function", "function": {"name": value["name"]}}
    return value


class ResponsesWriter:
    """Writes the events of a response and collects its items: reasoning, messages and function calls in order."""

    def __init__(self, head: ResponseHead, repeated: Mapping[str, Any], call_id: str) -> None:
        self._head, self._repeated, self._call_id = head, repeated, call_id
        self._items: list[dict[str, Any]] = []
        self._texts: list[list[str]] = []
        self._number = 0
        self._incomplete = ""
        """Why the answer has no end."""
        self.has_calls = False

    def first(self) -> bytes:
        response = self._response("in_progress", None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def text(self, text: str) -> bytes:
        return self.events((TextDelta(text),), ())

    def events(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob]) -> bytes:
        written = []
        for event in events:
            match event:
                case TextDelta(text):
                    written.append(self._begin("message"))
                    written.append(self._delta("response.output_text.delta", text, content_index=0, logprobs=[]))
                case ReasoningDelta(text):
                    written.append(self._begin("reasoning"))
                    written.append(self._delta("response.reasoning_text.delta", text, content_index=0))
                case ToolCallStart(call, name):
                    self.has_calls = True
                    written.append(self._begin("function_call", call_id=f"{self._call_id}{call}", name=name))
                case ToolCallArguments(_, fragment):
                    written.append(self._delta("response.function_call_arguments.delta", fragment))
        return b"".join(written)

    def finish(self, reason: str) -> bytes:
        self._incomplete = {"length": "max_output_tokens", "content_filter": reason}.get(reason, "")
        if not self._items:  # an answer without text is a message all the same
            return self._begin("message") + self._end()
        return self._end()

    def last(self, usage: Usage | None) -> bytes:
        kind = "response.incomplete" if self._incomplete else "response.completed"
        return self._event(kind, response=self.body(usage))

    def failed(self, error: ApiError) -> bytes:
        return self._event("error", code=error.code, message=str(error), param=error.param)

    def body(self, usage: Usage | None) -> dict[str, Any]:
        return self._response("incomplete" if self._incomplete else "completed", usage)

    def _begin(self, kind: str, **more: Any) -> bytes:
        """Begin an item, unless the open one is of this kind; calls are one item each."""
        if self._items and self._items[-1]["type"] == kind != "function_call":
            return b""
        written = self._end() if self._items else b""
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        item: dict[str, Any] = {"id": f"{prefix}_{self._head.id}{len(self._items)}", "type": kind, **more}
        item["status"] = "in_progress"
        if kind == "message":
            item |= {"role": "assistant", "content": []}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        else:
            item["arguments"] = ""
        self._items.append(item)
        self._texts.append([])
        written += self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)
        if kind != "function_call":
            written += self._part("response.content_part.added", self._content(item, ""))
        return written

    def _end(self) -> bytes:
        """End the open item."""
        item, text = self._items[-1], "".join(self._texts[-1])
        if item["status"] != "in_progress":
            return b""
        where = {"item_id": item["id"], "output_index": len(self._items) - 1}
        if item["type"] == "function_call":
            item["arguments"] = text
            written = self._event("response.function_call_arguments.done", **where, arguments=text, name=item["name"])
        else:
            part = self._content(item, text)
            item["content"] = [part]
            if item["type"] == "message":
                written = self._event("response.output_text.done", **where, content_index=0, text=text, logprobs=[])
            else:
                written = self._event("response.reasoning_text.done", **where, content_index=0, text=text)
            written += self._part("response.content_part.done", part)
        item["status"] = "incomplete" if self._incomplete else "completed"
        return written + self._event("response.output_item.done", output_index=where["output_index"], item=item)

    def _content(self, item: Mapping[str, Any], text: str) -> dict[str, Any]:
        if item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _part(self, kind: str, part: Mapping[str, Any]) -> bytes:
        return self._event(
            kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, content_index=0, part=part
        )

    def _delta(self, kind: str, delta: str, **more: Any) -> bytes:
        self._texts[-1].append(delta)
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, delta=delta, **more)

    def _event(self, kind: str, **values: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": f"resp_{self._head.id}",
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "model": self._head.model,
            "output": self._items if status != "in_progress" else [],
            "error": None,
            "incomplete_details": {"reason": self._incomplete} if status == "incomplete" else None,
            "store": False,
            **self._repeated,
        }
        if self._head.service_tier is not None:
            body["service_tier"] = self._head.service_tier
        if usage is not None:
            body["usage"] = {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.total_tokens,
            }
        return body

"""Schemas that force an answer to be tool calls, and the parsers of such answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.openai_api.events import Event, ToolCallArguments, ToolCallStart
from inflight.openai_api.tool_calls.parser import Steps, ToolCallParser
from inflight.openai_api.tools import Tools

MAX_REQUIRED_CALLS = 16


def call_schema(tools: Tools) -> dict[str, Any]:
    """Return the schema of a list of calls of any of the tools; of the arguments alone if one tool is named.

    References within the parameters of a tool lead to the same place of the same tool.
    """
    if tools.named is not None:
        (parameters,) = (each["parameters"] for each in tools.functions if each["name"] == tools.named)
        return {"type": "object", **parameters}
    definitions, calls = {}, []
    for number, function in enumerate(tools.functions):
        place = f"#/$defs/tool{number}"
        parameters = {"type": "object", **function["parameters"]}
        definitions[f"tool{number}"] = _moved(parameters, place)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"enum": [function["name"]]}, "parameters": {"$ref": place}},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    most = MAX_REQUIRED_CALLS if tools.parallel else 1
    return {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}, "$defs": definitions}


def call_or_answer_schema(tools: Tools, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a list of calls, or else of an object with the schema `answer`."""
    calls = call_schema(tools)
    place = "#/$defs/answer"
    definitions = calls.pop("$defs") | {"answer": _moved(answer, place)}
    return {"anyOf": [calls, {"$ref": place}], "$defs": definitions}


class RequiredCallsParser(ToolCallParser):
    """Reads an answer that is a list of calls, as `call_schema` forced it; an object is text."""

    skipped_keys = frozenset()
    openings = ("[",)

    def _answer(self) -> Steps[None]:
        if (yield from self._symbol("[")):
            yield from self._array_of_calls()
        yield from self._rest_is_text()


class NamedCallParser:
    """The whole answer is the arguments of one function, as `call_schema` forced it."""

    done = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def feed(self, text: str) -> list[Event]:
        arguments = ToolCallArguments(0, text)
        if self._begun:
            return [arguments]
        self._begun = True
        return [ToolCallStart(0, self._name), arguments]

    def finish(self, cut: bool = False) -> list[Event]:
        return []


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references to itself lead to where it is now."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {name: _moved(value, place) for name, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved

"""Parses the fields about tools: which functions the model may call, and whether it must."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight_client.validation import shorten

from inflight.openai_api.errors import ApiError
from inflight.openai_api.field_reader import FieldReader
from inflight.openai_api.fields import MAX_TOOLS

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Tools:
    """The functions of a request. `choice` is `none`, `auto`, `required`, or `function` with its name in `named`."""

    functions: tuple[Mapping[str, Any], ...] = ()
    choice: str = "none"
    named: str | None = None
    parallel: bool = True

    @property
    def active(self) -> bool:
        """Whether the model may call functions."""
        return bool(self.functions) and self.choice != "none"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each["name"] for each in self.functions)

    def for_template(self) -> list[dict[str, Any]]:
        """Return the tools in the form that chat templates expect."""
        return [{"type": "function", "function": dict(each)} for each in self.functions]


NO_TOOLS = Tools()


def parse_tools(reader: FieldReader) -> Tools:
    """Parse `tools`, `tool_choice` and `parallel_tool_calls`. Raises ApiError."""
    values = reader.values
    tools = values.get("tools", [])
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise ApiError(f"tools must be a list of up to {MAX_TOOLS} tools", "invalid_parameter", "tools")
    functions = tuple(_function(place, each) for place, each in enumerate(tools))
    names = [each["name"] for each in functions]
    if len(set(names)) < len(names):
        raise ApiError("two tools have the same name; give each its own", "invalid_parameter", "tools")
    parallel = values.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool):
        raise ApiError("parallel_tool_calls must be true or false", "invalid_parameter", "parallel_tool_calls")
    choice, named = _choice(values.get("tool_choice", "auto" if functions else "none"), names)
    if choice != "none" and not functions:
        if "tool_choice" in values and choice != "auto":
            raise ApiError(
                "tool_choice asks for a call, and there are no tools; send tools", "invalid_parameter", "tool_choice"
            )
        choice = "none"
    return Tools(functions, choice, named, parallel)


def _function(place: int, tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise ApiError(
            f"tools[{place}] is {shorten(tool)}; it must have the type function and a function",
            "invalid_parameter",
            "tools",
        )
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(
            f"tools[{place}] has the name {shorten(name)}; it must be 1 to 64 letters, digits, - and _",
            "invalid_parameter",
            "tools",
        )
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ApiError(f"the parameters of tools[{place}] must be a JSON schema", "invalid_parameter", "tools")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise ApiError(f"the description of tools[{place}] must be a text", "invalid_parameter", "tools")
    return {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }


def _choice(value: Any, names: list[str]) -> tuple[str, str | None]:
    if value in ("none", "auto", "required"):
        return value, None
    function = value.get("function") if isinstance(value, Mapping) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name is None:
        raise ApiError(
            f"tool_choice is {shorten(value)}; it must be none, auto, required, or a function by name",
            "invalid_parameter",
            "tool_choice",
        )
    if name not in names:
        raise ApiError(
            f"tool_choice names {shorten(name)}, which is not among the tools", "invalid_parameter", "tool_choice"
        )
    return "function", name

"""The JSON schema of an answer that must be a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.openai_api.tools import Tools

MAX_REQUIRED_CALLS = 16


def call_schema(tools: Tools) -> dict[str, Any]:
    """Return the schema of a list of calls of any of the tools; of the arguments alone if one tool is named."""
    if tools.named is not None:
        (parameters,) = (each["parameters"] for each in tools.functions if each["name"] == tools.named)
        return dict(parameters)
    definitions, calls = {}, []
    for number, function in enumerate(tools.functions):
        place = f"tool{number}"
        definitions[place] = _moved(function["parameters"], f"#/$defs/{place}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"enum": [function["name"]]}, "parameters": {"$ref": f"#/$defs/{place}"}},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    most = MAX_REQUIRED_CALLS if tools.parallel else 1
    return {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}, "$defs": definitions}


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

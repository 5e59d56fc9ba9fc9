"""The fields that say what form an answer must have: response_format, and vLLM's guided decoding."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from inflight_client.sampling import Guide
from inflight_client.validation import check_int, check_utf8, shorten

from inflight.openai_api.errors import ApiError, errors_of
from inflight.openai_api.schemas import enforceable

MAX_SCHEMA_BYTES = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FORMAT_FIELDS = {
    "text": ("type",),
    "json_object": ("type",),
    "json_schema": ("type", "json_schema"),
    "regex": ("type", "regex", "pattern"),
    "ebnf": ("type", "ebnf"),
}


def response_guide(value: Any) -> Guide | None:
    """Parse a response format; with `json_schema`, `strict` or not, the answer follows the schema."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind in _FORMAT_FIELDS:
        _check_known(value, _FORMAT_FIELDS[kind], "response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        return Guide("json")
    if kind == "json_schema":
        described = value.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        if isinstance(described, Mapping):
            _check_known(described, ("name", "schema", "strict", "description"), "response_format.json_schema")
        if not isinstance(schema, Mapping) or not schema:
            raise _invalid_format("response_format has no json_schema.schema, an object")
        name = described.get("name", "schema")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _invalid_format("json_schema.name must be 1 to 64 letters, digits, - and _")
        return schema_guide(schema, "response_format")
    if kind == "regex":
        return text_guide("regex", value.get("regex", value.get("pattern")))
    if kind == "ebnf":
        return text_guide("ebnf_grammar", value.get("ebnf"))
    raise _invalid_format(
        f"response_format is {shorten(value)}; its type must be text, json_object, json_schema, regex or ebnf"
    )


def schema_guide(schema: Mapping[str, Any], param: str) -> Guide:
    """Return the guide of a JSON schema, without what can't be enforced. Raises ApiError if it is too large or deep."""
    try:
        text_guide("json_schema", json.dumps(schema, ensure_ascii=False), param)  # its size, before any other work
        text = json.dumps(enforceable(schema)[0], ensure_ascii=False)
    except (RecursionError, ValueError):
        raise ApiError("the schema is nested too deep", "invalid_parameter", param) from None
    return text_guide("json_schema", text, param)


def unenforced(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keywords that can't be enforced of the schemas that an answer must keep, which have been checked."""
    described = values.get("response_format", {}).get("json_schema")
    if isinstance(described, Mapping):
        yield from (f"response_format.{name}" for name in enforceable(described.get("schema"))[1])
    if described is not None or values.get("tool_choice") not in (None, "auto", "none"):
        functions = [each.get("function") or {} for each in values.get("tools") or ()]
        names = (enforceable(each.get("parameters"))[1] for each in functions)
        yield from (f"tools.{name}" for name in dict.fromkeys(chain.from_iterable(names)))


def text_guide(
    kind: Literal["json_schema", "regex", "ebnf_grammar"], text: Any, param: str = "response_format"
) -> Guide:
    with errors_of(param):
        if isinstance(text, str):
            check_utf8(param, text)
            check_int(f"the size of {param} in bytes", len(text.encode()), 1, MAX_SCHEMA_BYTES)
        return Guide(kind, text if isinstance(text, str) else "")


def _invalid_format(message: str) -> ApiError:
    return ApiError(message, "invalid_parameter", "response_format")


def _check_known(described: Mapping[str, Any], allowed: Sequence[str], what: str) -> None:
    """Raise ApiError for a field that would change nothing."""
    for name, value in described.items():
        if name not in allowed and value is not None:
            step = (
                'send {"type": "json_schema", "json_schema": {"schema": ...}}' if name == "schema" else "leave it out"
            )
            raise _invalid_format(f"{what} has {str(name)[:40]!r}, which is unknown there; {step}")

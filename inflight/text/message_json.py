"""Messages and template arguments as JSON; size, depth and number of values are checked before parsing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inflight.common.json_values import has_more_values, outside_strings
from inflight.common.request_error import RequestError

MAX_MESSAGE_BYTES = 16 * 2**20
"""The longest messages as JSON; a context of a million tokens is about five million bytes."""
MAX_DEPTH = 64
"""Levels of nested arrays and objects; the array of messages is the first."""
MAX_VALUES = 200_000
"""Values of all levels; a message has about five, and a template takes microseconds for each."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_messages(raw: bytes) -> list[Any]:
    """Parse messages. Raises RequestError (`invalid_messages`) if `raw` is not a JSON list."""
    messages = _parsed("messages", raw)
    if not isinstance(messages, list):
        raise invalid_messages("messages must be a JSON array of objects with role and content")
    return messages


def parse_kwargs(raw: bytes) -> dict[str, Any]:
    """Parse arguments of the template. Raises RequestError (`invalid_messages`) if `raw` is not a JSON object."""
    kwargs = _parsed("chat_template_kwargs", raw) if raw else {}
    if not isinstance(kwargs, dict):
        raise invalid_messages("chat_template_kwargs must be a JSON object")
    return kwargs


def to_json(name: str, value: Sequence[Any] | Mapping[str, Any]) -> bytes:
    """Encode a caller's value as JSON. Raises RequestError (`invalid_messages`) for types that JSON doesn't have."""
    try:
        return json.dumps(value, default=dict).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_messages(f"{name} can't be written as JSON ({error}); use JSON's types only") from None


def invalid_messages(message: str) -> RequestError:
    return RequestError(message, "invalid_messages")


def _parsed(name: str, raw: bytes) -> Any:
    """Parse JSON; the result has JSON's types only, which give a template no access to anything else."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise invalid_messages(f"{name} has {len(raw)} bytes as JSON; at most {MAX_MESSAGE_BYTES} are taken")
    _check_shape(name, raw)
    try:
        return json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise invalid_messages(f"{name} is not valid JSON ({error}); send it as JSON in UTF-8") from None


def _check_shape(name: str, raw: bytes) -> None:
    """Raise RequestError for too many values or levels; the parser reports invalid JSON."""
    if has_more_values(raw, MAX_VALUES):
        raise invalid_messages(f"{name} has too many values; at most {MAX_VALUES} are taken")
    outside = outside_strings(raw.replace(rb"\\", b"").replace(rb"\"", b""))
    depth = 0
    for bracket in outside.translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise invalid_messages(
                f"{name} is nested too deep; at most {MAX_DEPTH} levels of arrays and objects are taken"
            )

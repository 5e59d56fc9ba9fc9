"""Serializes a caller's values to JSON once, so that each attempt sends the same text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inflight_client.errors import InflightError
from inflight_client.validation import shorten

MAX_DEPTH = 64
"""Maximum nesting of lists and mappings; it also catches values that contain themselves."""


def json_text(name: str, value: Any) -> str:
    """Return a value as JSON: None, booleans, numbers, text, lists, tuples, and mappings with text as keys.

    Raises InflightError `invalid_messages` for any other type, with its position: no value is converted, no iterator
    is consumed, and the result can be parsed again.
    """
    plain = _plain(name, value, 0)
    try:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        why = f"text that can't be encoded as UTF-8 ({error.reason}); send whole characters"
    except ValueError:
        why = "a number that JSON can't represent; send finite numbers of at most a few thousand digits"
    else:
        return text
    raise InflightError(f"{name} holds {why}", "invalid_messages")


def _plain(where: str, value: Any, depth: int) -> Any:
    """Return a plain copy of the value; `where` is its position for error messages."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if depth > MAX_DEPTH:
        raise InflightError(
            f"{where[:60]}... is nested more than {MAX_DEPTH} levels deep or contains itself; send less",
            "invalid_messages",
        )
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InflightError(
                    f"{where} has the key {shorten(key)} of type {type(key).__name__}; JSON keys must be strings",
                    "invalid_messages",
                )
        return {key: _plain(f"{where}.{shorten(key)[1:-1]}", each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{where}[{place}]", each, depth + 1) for place, each in enumerate(value)]
    raise InflightError(
        f"{where} has the type {type(value).__name__}, which JSON lacks; send text, numbers, lists and mappings",
        "invalid_messages",
    )

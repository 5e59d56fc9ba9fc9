"""Pydantic's errors in the words of messages to users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the client's commands import this too, without pydantic
    from pydantic import ValidationError

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number of at most {le}",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "too_short": "a list of at least {min_length}",
    "dict_type": "a mapping of fields to values",
    "model_type": "a mapping of fields to values",
    "literal_error": "one of {expected}",
    "value_error": "{error}",
}


_PREFIX = "Input should be "


def expected(error: Mapping[str, Any]) -> str:
    """Return what a value must be, such as "a whole number"; a validator's ValueError in its own words."""
    context = {key: str(value).replace("'", "") for key, value in error.get("ctx", {}).items()}
    phrase = _EXPECTED.get(error["type"])
    return phrase.format(**context) if phrase else str(error["msg"]).removeprefix(_PREFIX)


def problem(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, where validators raise ValueError with sentences."""
    named = error["type"] != "value_error" and (error["type"] in _EXPECTED or error["msg"].startswith(_PREFIX))
    return f"it must be {expected(error)}" if named else expected(error)


def first_error(error: ValidationError) -> str:
    """Return where a stored file is wrong, and how: "limits.max_batch_size: it must be a whole number"."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {problem(first)}"

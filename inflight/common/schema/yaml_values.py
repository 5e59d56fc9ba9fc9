"""Reads YAML as plain values: those that JSON can represent, with unique keys."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import yaml

_MAX_DEPTH = 64
_ALLOWED_KINDS = "text, finite numbers, true, false, null, lists, or fields by name"


def load_values(text: str) -> Any:
    """Parse `text`.

    Raises YAMLError for invalid YAML or a duplicate key, and ValueError, in a line, for a value of another kind.
    """
    try:
        found = yaml.load(text, Loader=_Loader)
        _check(found, ())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return found


def put_value(fields: dict[str, Any], path: list[str], value: Any) -> None:
    """Put `value` at `path`, a list of field names. Raises ValueError, in a line, if a field on it has a value."""
    for name in path[:-1]:
        inner = fields.setdefault(name, {})
        if inner is None:
            inner = fields[name] = {}
        if not isinstance(inner, dict):
            raise ValueError(f"{name} is {inner!r}, and it takes fields")
        fields = inner
    fields[path[-1]] = value


class _Loader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys, which hides a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _check(value: Any, path: tuple[str, ...]) -> None:
    if len(path) > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{'.'.join([*path, str(key)])} has a name that is not text; write it in quotes")
            _check(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check(inner, (*path, str(index)))
    elif not (value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))):
        where = f"{'.'.join(path)} is " if path else "it is "
        raise ValueError(
            f"{where}{value}, a value of another kind than {_ALLOWED_KINDS}; write it in quotes if it is text"
        )

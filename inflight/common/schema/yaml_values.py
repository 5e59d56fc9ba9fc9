"""Parses YAML into plain values: those of JSON, with unique keys."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import yaml

_MAX_DEPTH = 64
_ALLOWED_KINDS = "a text, a finite number, true, false, null, a list or a mapping"


def load_values(text: str) -> Any:
    """Parse `text`.

    Raises YAMLError for invalid YAML and for duplicate keys, and ValueError, on one line, for values that are not
    allowed.
    """
    check_nesting(text)
    values = yaml.load(text, Loader=_Loader)
    _check(values, ())
    return values


def check_nesting(text: str) -> None:
    """Raise ValueError for YAML nested so deeply that PyYAML would fail, and YAMLError for what is none."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        _check_depth(depth)


def put_value(fields: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at `path`, a list of nested names. Raises ValueError if one of them is not a mapping."""
    for name in path[:-1]:
        inner = fields.setdefault(name, {})
        if inner is None:
            inner = fields[name] = {}
        if not isinstance(inner, dict):
            raise ValueError(f"{name} is {inner!r}, but it must be a mapping of fields")
        fields = inner
    fields[path[-1]] = value


class _Loader(yaml.SafeLoader):
    """A loader that rejects duplicate keys, of which PyYAML would use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _check(value: Any, path: tuple[str, ...]) -> None:
    _check_depth(len(path))  # an alias may contain itself
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{'.'.join([*path, str(key)])} is not a text; write the name in quotes")
            _check(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check(inner, (*path, str(index)))
    elif not (value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))):
        where = f"{'.'.join(path)} is " if path else "it is "
        raise ValueError(f"{where}{value}, which is not {_ALLOWED_KINDS}; write it in quotes if it is a text")


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested too deeply; at most {_MAX_DEPTH} levels are allowed")

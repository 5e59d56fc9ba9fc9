"""Reads arguments of the LLM API from a YAML file and from `name=value`; each error is one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from build_engines.errors import BuildError
from build_engines.llmapi.arguments import KvCacheArguments, LlmArguments
from inflight.common.schema.validation_errors import expected
from inflight.common.schema.yaml_values import load_values, put_value
from inflight.common.suggestions import nearest


def read_arguments(path: Path | None, overrides: Iterable[str] = ()) -> LlmArguments:
    """Return the arguments in the file `path`, replaced by each `name=value` of `overrides`. Values are YAML.

    A dotted name sets a nested field: `kv_cache_config.max_tokens=65536`. Raises BuildError (`invalid_parameter`) with
    one sentence that names the field and suggests the nearest name for an unknown one.
    """
    where = str(path) if path else "the arguments"
    found = _load(path) if path else {}
    for one in overrides:
        name, given, value = one.partition("=")
        if not given or not name:
            raise _wrong(f"{one!r} is not an argument; write name=value.")
        parsed = _parse(value, f"The value of {name}")
        try:
            put_value(found, name.split("."), parsed)
        except ValueError as error:
            raise _wrong(f"In {where}, {error}.") from error
    return parse_arguments(found, where)


def parse_arguments(found: dict[str, Any], where: str) -> LlmArguments:
    """Return the arguments; `where` names their source in messages. Raises BuildError (`invalid_parameter`)."""
    try:
        return LlmArguments.model_validate(found)
    except ValidationError as error:
        raise _wrong(_sentence(error.errors()[0], where)) from error


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"{path} can't be read ({getattr(error, 'strerror', None) or error}).") from error
    found = _parse(text, str(path))
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _wrong(f"{path} holds a {type(found).__name__}; write arguments by name.")
    return found


def _parse(text: str, what: str) -> Any:
    try:
        return load_values(text)
    except yaml.YAMLError as error:
        raise _wrong(f"{what} is not valid YAML ({' '.join(str(error).split())}).") from error
    except ValueError as error:
        raise _wrong(f"{what} is invalid: {error}.") from error


def _sentence(error: Mapping[str, Any], where: str) -> str:
    names = [str(part) for part in error["loc"]]
    name = ".".join(names)
    if error["type"] == "extra_forbidden":
        return f"There is no argument {name} in {where}; {_nearest(names)}"
    return f"In {where}, {name} is {error['input']!r}; it must be {expected(error)}."


def _nearest(names: list[str]) -> str:
    part: type[BaseModel] = KvCacheArguments if len(names) > 1 else LlmArguments
    if (close := nearest(names[-1], part.model_fields)) is not None:
        return f"did you mean {'.'.join([*names[:-1], close])}?"
    return "put other arguments of tensorrt_llm.LLM under extra." if len(names) == 1 else "leave it out."


def _wrong(message: str) -> BuildError:
    return BuildError(message, "invalid_parameter")

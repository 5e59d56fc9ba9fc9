"""Reads a target's settings from a YAML file and from the command line, which overrides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from build_engines.errors import invalid
from inflight.common.schema.validation_errors import expected
from inflight.common.schema.yaml_values import load_values, put_value

Settings = TypeVar("Settings", bound=BaseModel)


def read_settings_file(
    model: type[Settings],
    path: Path | None,
    overrides: Iterable[tuple[str, Any]],
    *,
    source: str,
    noun: str,
    form: str,
    advice: Callable[[list[str]], str],
) -> Settings:
    """Return the settings in the file `path`, replaced by `overrides`, whose names are dotted ("limits.max_seq_len").

    In messages, `source` names the settings without a file and `noun` one of them; `form` says what a file must
    hold, and `advice` what to do about an unknown name. Raises BuildError (`invalid_parameter`) with one sentence that
    names the setting.
    """
    where = str(path or source)
    values = _load(path, form) if path else {}
    for name, value in overrides:
        try:
            put_value(values, name.split("."), value)
        except ValueError as error:
            raise invalid(f"In {where}, {error}.") from error
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid(_sentence(error.errors()[0], where, noun, advice)) from error


def parse_value(name: str, text: str) -> Any:
    """Parse the YAML value that the command line gives for `name`. Raises BuildError (`invalid_parameter`)."""
    return _parse(text, f"The value of {name}")


def _load(path: Path, form: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"{path} can't be read ({getattr(error, 'strerror', None) or error}).") from error
    values = _parse(text, str(path))
    if values is not None and not isinstance(values, dict):
        raise invalid(f"{path} holds a {type(values).__name__}{form}.")
    return values or {}


def _parse(text: str, what: str) -> Any:
    try:
        return load_values(text)
    except yaml.YAMLError as error:
        raise invalid(f"{what} is not valid YAML ({' '.join(str(error).split())}).") from error
    except ValueError as error:
        raise invalid(f"{what} is invalid: {error}.") from error


def _sentence(error: Mapping[str, Any], where: str, noun: str, advice: Callable[[list[str]], str]) -> str:
    names = [str(part) for part in error["loc"]]
    name = ".".join(names)
    if error["type"] == "extra_forbidden":
        return f"There is no {noun} {name} in {where}; {advice(names)}"
    if error["type"] == "missing":
        return f"In {where}, {name} is missing; add it."
    return f"In {where}, {name} is {error['input']!r}; it must be {expected(error)}."

"""Reads a recipe from a YAML file and from flags, which override the file."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.recipe import Recipe
from inflight.common.schema.validation_errors import expected
from inflight.common.schema.yaml_values import load_values, put_value
from inflight.common.suggestions import nearest


def read_recipe(path: Path | None, flags: Mapping[str, Any]) -> Recipe:
    """Return the recipe of the file `path`, overridden by `flags`, whose keys are dotted ("limits.max_batch_size").

    Raises BuildError (`invalid_parameter`), which names the field and suggests similar names for an unknown one.
    """
    said = _load(path) if path else {}
    where = str(path) if path else "the recipe"
    for name, value in flags.items():
        try:
            put_value(said, name.split("."), value)
        except ValueError as error:
            raise _wrong(f"In {where}, {error}.") from error
    try:
        return Recipe.model_validate(said)
    except ValidationError as error:
        raise _wrong(_sentence(error.errors()[0], where)) from error


def parse_value(name: str, text: str) -> Any:
    """Parse the YAML value that a flag gives for the field `name`. Raises BuildError (`invalid_parameter`)."""
    try:
        return load_values(text)
    except yaml.YAMLError as error:
        raise _wrong(f"The value of {name} is not valid YAML ({' '.join(str(error).split())}).") from error
    except ValueError as error:
        raise _wrong(f"The value of {name} is invalid: {error}.") from error


def recipe_fields(part: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, type[BaseModel], str]]:
    """Yield the dotted name of each field, its section, and its name; sections themselves are skipped."""
    for name, field in part.model_fields.items():
        inner = section_type(field.annotation)
        if inner is None:
            yield prefix + name, part, name
        else:
            yield from recipe_fields(inner, f"{prefix}{name}.")


def section_type(annotation: Any) -> type[BaseModel] | None:
    """Return the section in an annotation (`Lora | None`); None for a plain field."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((one for one in choices if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _load(path: Path) -> dict[str, Any]:
    try:
        read = load_values(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"The recipe {path} can't be read ({getattr(error, 'strerror', None) or error}).") from error
    except yaml.YAMLError as error:
        raise _wrong(f"{path} is not valid YAML ({' '.join(str(error).split())}).") from error
    except ValueError as error:
        raise _wrong(f"The recipe {path} is invalid: {error}.") from error
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise _wrong(f"{path} holds a {type(read).__name__}, and a recipe is a mapping of fields to values.")
    return read


def _sentence(error: Mapping[str, Any], where: str) -> str:
    path = [str(part) for part in error["loc"]]
    name = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"There is no field {name} in {where}; {_nearest(path)}"
    if error["type"] == "missing":
        return f"In {where}, {name} is missing; add it."
    return f"In {where}, {name} is {error['input']!r}; it must be {expected(error)}."


def _nearest(path: list[str]) -> str:
    every = [name for name, _, _ in recipe_fields()]
    for known, wanted in ((every, ".".join(path)), ([name.rsplit(".", 1)[-1] for name in every], path[-1])):
        if (close := nearest(wanted, known, cutoff=0.75)) is not None:
            return f"did you mean {every[known.index(close)]}?"
    return f"its fields are {', '.join(Recipe.model_fields)}."


def _wrong(message: str) -> BuildError:
    return BuildError(message, "invalid_parameter")

"""Reads parameters that users give by name into types, with one sentence per error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from inflight.common.schema.validation_errors import expected
from inflight.common.schema.yaml_values import load_values
from inflight.common.suggestions import nearest
from inflight.deploy.errors import invalid

MAX_INT32 = 2**31 - 1
"""TensorRT-LLM reads most numbers as int32, and silently uses its default for larger ones."""


_PATHS = re.compile(r"\{[^{}]*\}(,\{[^{}]*\})*")


def _reject_bool(value: Any) -> Any:
    """Refuse YAML's booleans, such as `yes`, as numbers."""
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


def _parse_numbers(value: Any) -> Any:
    """Parse "1, 2", a user's list of numbers."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, int) else value


def _parse_groups(value: Any) -> Any:
    """Parse "0,1;2,3", groups of numbers. A plain list of numbers is one group, like "0,1"."""
    if isinstance(value, str):
        return [_parse_numbers(group) for group in value.split(";")]
    if isinstance(value, list) and any(isinstance(part, list | tuple | str) for part in value):
        return [_parse_numbers(group) if isinstance(group, str) else group for group in value]
    return [_parse_numbers(value)] if value or value == 0 else value


def _parse_paths(value: Any) -> Any:
    """Parse "{0}, {0, 1}", the paths of a tree of choices."""
    if not isinstance(value, str):
        return value
    compact = re.sub(r"\s*([{},])\s*", r"\1", value)
    if not _PATHS.fullmatch(compact):
        raise ValueError("paths in braces, as {0}, {0, 1}")
    return [_parse_numbers(path) for path in compact[1:-1].split("},{")]


def _absolute_path(value: Any) -> Any:
    """Return an absolute path: the serving machine reads it, from any working directory."""
    if not isinstance(value, str) or not value.startswith("/") or not value.isprintable():
        raise ValueError("an absolute path")
    return value


def _commas(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


Count = Annotated[int, Field(ge=0, le=MAX_INT32), BeforeValidator(_reject_bool)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT32), BeforeValidator(_reject_bool)]
Instances = Annotated[int, Field(ge=1, le=64), BeforeValidator(_reject_bool)]
Bytes = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_reject_bool)]
OpenFraction = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_reject_bool)]
ClosedFraction = Annotated[float, Field(ge=0, le=1), BeforeValidator(_reject_bool)]
AbsolutePath = Annotated[str, BeforeValidator(_absolute_path)]
Numbers = Annotated[
    tuple[Positive, ...],
    Field(min_length=1),
    BeforeValidator(_parse_numbers),
    PlainSerializer(_commas, when_used="json"),
]
Group = Annotated[tuple[Count, ...], Field(min_length=1)]
Groups = Annotated[
    tuple[Group, ...],
    Field(min_length=1),
    BeforeValidator(_parse_groups),
    PlainSerializer(lambda groups: ";".join(map(_commas, groups)), when_used="json"),
]
"""Written "0,1;2,3"."""
Choices = Annotated[
    tuple[Group, ...],
    Field(min_length=1),
    BeforeValidator(_parse_paths),
    PlainSerializer(lambda paths: ", ".join(f"{{{_commas(path)}}}" for path in paths), when_used="json"),
]
"""Written "{0}, {0,1}"."""


class TypedParameters(BaseModel):
    """Parameters with types, ranges and defaults; None leaves the choice to upstream."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    set_elsewhere: ClassVar[Mapping[str, str]] = {}
    """Parameters that are set elsewhere, with the place."""

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> Self:
        """Parse the given parameters; texts may hold numbers and lists in a user's form.

        Raises DeployError `invalid_parameter` for an unknown name (`where` describes the model), and for an invalid
        value.
        """
        for name in values:
            if name in cls.set_elsewhere:
                raise invalid(f"The parameter {name} can't be set here: {cls.set_elsewhere[name]}; leave it out.")
            if name not in cls.model_fields:
                raise invalid(_unknown(name, list(cls.model_fields), where))
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            _refuse(error.errors()[0])

    def pbtxt_values(self) -> dict[str, str]:
        """Return each parameter that has a value, in config.pbtxt's form."""
        return {name: _text(value) for name, value in self.model_dump(mode="json").items() if value is not None}


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _unknown(name: str, names: list[str], where: str) -> str:
    near = nearest(name, names, cutoff=0.5)
    return f"There is no parameter {name!r} of {where}; " + (
        f"did you mean {near}?" if near else f"there are {', '.join(sorted(names))}."
    )


def _refuse(error: Mapping[str, Any]) -> NoReturn:
    name, value = error["loc"][0], error["input"]
    verb = "is" if len(error["loc"]) == 1 else "holds"
    raise invalid(f"The parameter {name} {verb} {value!r}; it must be {expected(error)}.")


def load_parameters_file(path: Path) -> dict[str, Any]:
    """Return the parameters by name, which are not checked here. Raises DeployError `invalid_parameter`."""
    try:
        values = load_values(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise invalid(f"The file of parameters {path} can't be read ({error.strerror}); check the path.") from error
    except (yaml.YAMLError, ValueError) as error:
        what = " ".join(str(error).split())
        raise invalid(
            f"The file of parameters {path} can't be read ({what}); write a line NAME: VALUE for each."
        ) from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise invalid(f"The file of parameters {path} holds no names with values; write lines of NAME: VALUE.")
    for name, value in values.items():
        if value is None:
            raise invalid(f"The parameter {name} has no value in {path}; give it one, or remove the line.")
    return values

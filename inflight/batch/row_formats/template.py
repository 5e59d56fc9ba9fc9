"""The template that creates a prompt from a row's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inflight_client import InflightError
from jinja2 import StrictUndefined, TemplateError, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import Job


class Template:
    """A Jinja template that sees the columns by name, and the whole row as `row`. It is sandboxed, because the rows may
    come from someone else. A missing or null value is an error instead of an empty place in a prompt.
    """

    def __init__(self, text: str, name: str = "the template") -> None:
        """Raises BatchError `input_invalid` if the text is not a valid template."""
        self.name = name
        try:
            names = meta.find_undeclared_variables(_ENVIRONMENT.parse(text))
            self.columns = frozenset(names) - _OWN
            self.names_row = "row" in names
            self.is_constant = not names - set(_ENVIRONMENT.globals)
            self._fixed = None if "{" in text else _ENVIRONMENT.from_string(text).render()
            self._render: Callable[..., str] = _ENVIRONMENT.from_string(text).render
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            place = f" in line {line}" if line else ""
            raise BatchError(f"{name} has a syntax error: {_words(error)}{place}", "input_invalid") from None
        except (RecursionError, MemoryError, OverflowError) as error:
            raise BatchError(f"{name} can't be used: {type(error).__name__}", "input_invalid") from None

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the text for a row. Raises InflightError `row_invalid` if the row lacks a value of the template."""
        if self._fixed is not None:
            return self._fixed
        try:
            return self._render({"row": values, **values})
        except _NullError:
            raise InflightError(
                f"{self.name} uses a value that is null in this row; give a default, as in {{{{ name or 'none' }}}}",
                "row_invalid",
            ) from None
        except UndefinedError as error:
            raise InflightError(
                f"{self.name} uses a value that the row lacks: {_words(error)}{_there_are(values)}", "row_invalid"
            ) from None
        except Exception as error:  # any error of its filters and operators on the row's values
            raise InflightError(f"{self.name} can't be filled in: {_words(error)}", "row_invalid") from None


class _NullError(Exception):
    pass


def _not_null(value: Any) -> Any:
    if value is None:
        raise _NullError
    if isinstance(value, bytes | memoryview):
        raise TypeError("a value is binary and not UTF-8")
    return value


def _words(error: Exception) -> str:
    return (" ".join(str(error).split()).rstrip(".") or type(error).__name__)[:300]


def _there_are(values: Mapping[str, Any]) -> str:
    names = ", ".join(str(name) for name in list(values)[:20])
    return f"; it has {names}"[:300]


_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, finalize=_not_null, autoescape=False)
_OWN = {"row", *_ENVIRONMENT.globals}
_ALWAYS = frozenset(("custom_id", "method", "url", "body", "messages"))
"""Columns that identify requests and conversations."""


def wanted_columns(job: Job) -> frozenset[str] | None:
    """Return the columns that a job's rows may need; None: any."""
    spec = job.input
    columns = set() if job.encode is None else {job.encode.documents, job.encode.continuations}
    columns |= set() if job.retrieval is None else {job.retrieval.query}
    columns |= {spec.prompt, *spec.keep, *_ALWAYS} | ({spec.id} if spec.id is not None else set())
    for text in filter(None, (spec.template, spec.system)):
        template = Template(text)
        if template.names_row:
            return None
        columns |= template.columns
    return frozenset(columns)

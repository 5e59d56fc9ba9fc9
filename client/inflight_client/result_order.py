"""The order in which `generate_many` returns its results, for threads and asyncio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from inflight_client.errors import InflightError
from inflight_client.results import Generation

Outcome = Generation | InflightError
"""The result of one of many prompts: its answer, or the error in its place."""

READ_AHEAD_FACTOR = 4
"""Up to this many times `concurrency` prompts are read before the first result is returned: a slow prompt does not
block others, and memory stays bounded."""

CLOSE_TIMEOUT = 2.0
"""How many seconds closing waits for requests in flight. Those that take longer end in the background."""


class SourceEnd(NamedTuple):
    """The end of the prompts; `error` is the exception that their source raised, if any."""

    error: BaseException | None = None


class ResultOrder:
    """Takes results in any order and returns them in the order of `generate_many`."""

    def __init__(self, as_completed: bool, return_errors: bool) -> None:
        self._as_completed = as_completed
        self._return_errors = return_errors
        self._pending: dict[int, Outcome | BaseException] = {}
        self._emitted = 0
        self._total: int | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether all results have been returned. Raises the exception that the prompts' source raised."""
        if self._emitted != self._total:
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def add(self, place: int, what: Outcome | BaseException | SourceEnd) -> Iterator[Any]:
        """Add a result and yield those that are due. Errors are raised unless they are to be returned."""
        if isinstance(what, SourceEnd):
            self._total, self._error = place, what.error
            return
        self._pending[place] = what
        while (due := place if self._as_completed else self._emitted) in self._pending:
            outcome = self._pending.pop(due)
            self._emitted += 1
            if isinstance(outcome, BaseException) and not (self._return_errors and isinstance(outcome, InflightError)):
                raise outcome
            yield (due, outcome) if self._as_completed else outcome


def validate_source(name: str, values: Any, expected: str, asynchronous: bool = False) -> Any:
    """Return the caller's iterable of prompts or texts. Raises InflightError for other objects."""
    if hasattr(values, "__aiter__"):
        if asynchronous:
            return values
        what = f"the {name} are an asynchronous {type(values).__name__}; only AsyncClient reads those"
        raise InflightError(what, "invalid_parameter")
    if isinstance(values, str | bytes | bytearray | Mapping) or not hasattr(values, "__iter__"):
        what = f"the {name} have the type {type(values).__name__}; they must be {expected}"
        raise InflightError(what, "invalid_parameter")
    return values

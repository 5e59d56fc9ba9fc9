"""Which of many outcomes is handed out next, the same for threads and asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from inflight_client.call import Prompt
from inflight_client.errors import InflightError
from inflight_client.results import Generation
from inflight_client.validation import check_int

Outcome = Generation | InflightError
"""What came of one of many prompts, where failures take their answers' places."""

READ_AHEAD_FACTOR = 4
"""How many times `concurrency` prompts may be read before the first of them has been handed out: in order, a slow one
holds up no others, and a million prompts never stand in memory."""

CLOSE_TIMEOUT = 2.0
"""How long leaving waits for what is on its way. What is stuck for longer ends by itself, when it can."""


class SourceEnd(NamedTuple):
    """The prompts ended, at the place that comes with it; perhaps by an error of theirs."""

    error: BaseException | None = None


class ResultOrder:
    """Takes what comes, in whatever order, and gives what `generate_many` hands out: see there."""

    def __init__(self, as_completed: bool, return_errors: bool) -> None:
        self._as_completed = as_completed
        self._return_errors = return_errors
        self._pending: dict[int, Outcome | BaseException] = {}
        self._emitted = 0
        self._total: int | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether all has been handed out; raises what the prompts themselves ended with."""
        if self._emitted != self._total:
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def add(self, place: int, what: Outcome | BaseException | SourceEnd) -> Iterator[Any]:
        """What is due now. A failure is raised there, unless it is to be returned and is one of ours."""
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


def validate_concurrency(value: int) -> int:
    """The number itself; InflightError for what can't be one."""
    check_int("concurrency", value, 1, 2**31 - 1)
    return int(value)


def validate_prompts(prompts: Any) -> Iterable[Prompt]:
    """The prompts themselves; InflightError for what ordinary code can't read prompts from."""
    if hasattr(prompts, "__aiter__"):
        raise InflightError(
            f"the prompts are an asynchronous {type(prompts).__name__}; only AsyncClient reads those",
            "invalid_parameter",
        )
    if isinstance(prompts, str | bytes) or not hasattr(prompts, "__iter__"):
        raise InflightError(
            f"the prompts are a {type(prompts).__name__}; they must be a list of prompts, or something else to iterate",
            "invalid_parameter",
        )
    iterable: Iterable[Prompt] = prompts
    return iterable

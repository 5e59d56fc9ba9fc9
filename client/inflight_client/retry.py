"""Retries of calls: which errors, how long to wait, and when to give up."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.validation import MAX_SECONDS, check_int, check_number, invalid_value

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, Retrying


@dataclass(frozen=True)
class Retry:
    """The retry policy. Transient errors (`InflightError.retry`) are retried, never after the first token. A damaged
    answer is retried only once, since each attempt costs a whole answer; so is a connection that the peer closed at
    once, which usually means a wrong port.

    Before each retry the client waits a random time: at most `wait_initial` seconds before the first, twice as much
    before each further one, and at most `wait_max`; longer if a gateway's Retry-After asks for it. A call retries for
    at most `timeout` seconds and never past its deadlines. All calls of a client share a budget: `budget` retries, and
    `budget_ratio` more with each call, so that clients add little load to a server in trouble.
    """

    timeout: float = 30.0
    attempts: int = 20
    wait_initial: float = 0.2
    wait_max: float = 5.0
    budget_ratio: float = 0.1
    budget: int = 100

    def __post_init__(self) -> None:
        for name in ("timeout", "wait_initial", "wait_max"):
            check_number(f"the retry's {name}", getattr(self, name), 0, MAX_SECONDS)
        check_number("the retry's budget_ratio", self.budget_ratio, 0, 1000)
        check_int("the retry's attempts", self.attempts, 1, 2**31 - 1)
        check_int("the retry's budget", self.budget, 0, 2**31 - 1)


NO_RETRY = Retry(attempts=1)
"""Raise every error at once."""


def _retry_after(state: Any) -> float:
    """Return the seconds that the server asked to wait."""
    error = state.outcome.exception() if state.outcome is not None else None
    return (error.retry_after or 0.0) if isinstance(error, InflightError) else 0.0


def validate_retry(retry: Retry | None) -> Retry:
    """Return the given policy or the default one. Raises InflightError `invalid_parameter`."""
    if retry is not None and not isinstance(retry, Retry):
        raise invalid_value("retry", retry, "a Retry, or None for the default")
    return Retry() if retry is None else retry


class RetryBudget:
    """The retries that a client's calls may still make, shared by all its threads."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._left = float(retry.budget)
        self._lock = threading.Lock()

    def earn(self) -> None:
        """A call begins."""
        with self._lock:
            self._left = min(self._left + self._retry.budget_ratio, float(self._retry.budget))

    def spend(self) -> bool:
        """Take one retry; return False if none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Retries:
    """The retries of a client's calls, made with tenacity."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._budget = RetryBudget(retry)

    def attempts(self, deadline: Deadline, closed: threading.Event) -> Retrying:
        """Return the attempts of one call, to iterate over; the last attempt's error is raised unchanged.

        Once `closed` is set, no wait continues.
        """
        from tenacity import Retrying, sleep_using_event

        return Retrying(**self._rules(deadline), sleep=sleep_using_event(closed))

    def async_attempts(self, deadline: Deadline) -> AsyncRetrying:
        """Return the attempts of one call for asyncio."""
        from tenacity import AsyncRetrying

        return AsyncRetrying(**self._rules(deadline))

    def _rules(self, deadline: Deadline) -> dict[str, Any]:
        # Imported at the first call, so that importing the client stays fast.
        from tenacity import (
            retry_if_exception,
            stop_after_attempt,
            stop_any,
            stop_before_delay,
            wait_random_exponential,
        )

        self._budget.earn()
        backoff = wait_random_exponential(multiplier=self._retry.wait_initial, max=self._retry.wait_max)
        left = deadline.left()
        seconds = self._retry.timeout if left is None else min(left, self._retry.timeout)
        once = count(1)

        def again(error: BaseException) -> bool:
            """Return whether to retry; called once for each failed attempt."""
            if not (isinstance(error, InflightError) and error.retry):
                return False
            return error.code not in ("answer_damaged", "connection_closed") or next(once) == 1

        return {
            "retry": retry_if_exception(again),
            "stop": stop_any(
                stop_after_attempt(self._retry.attempts),
                stop_before_delay(seconds),
                self._budget_spent,  # type: ignore[arg-type]  # any callable will do
            ),
            "wait": lambda state: max(backoff(state), _retry_after(state)),
            "reraise": True,
        }

    def _budget_spent(self, state: Any) -> bool:
        return not self._budget.spend()

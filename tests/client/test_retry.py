"""When a call is sent again, and when no more."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
from inflight_client.deadline import NEVER, Deadline
from inflight_client.errors import ERROR_CODES, InflightError
from inflight_client.retry import NO_RETRY, Retries, Retry, RetryBudget
from tenacity import RetryCallState

from tests.fixtures.errors import raises

QUICK = Retry(wait_initial=0.001, wait_max=0.002)


def attempts(retries: Retries, code: str, deadline: Deadline = NEVER, given_up: threading.Event | None = None) -> int:
    """How often a call is sent that always fails so."""
    error = InflightError("it failed", code)
    sent: list[int] = []
    with pytest.raises(InflightError) as raised:
        fail(retries, error, sent, deadline, given_up or threading.Event())
    assert raised.value is error
    return len(sent)


def fail(retries: Retries, error: Exception, sent: list[int], deadline: Deadline, given_up: threading.Event) -> None:
    for attempt in retries.attempts(deadline, given_up):
        with attempt:
            sent.append(attempt.retry_state.attempt_number)
            raise error


@pytest.mark.parametrize("code", ERROR_CODES)
def test_what_is_transient_is_sent_again_and_nothing_else(code: str) -> None:
    most = 2 if code in ("answer_damaged", "connection_closed") else QUICK.attempts
    assert attempts(Retries(QUICK), code) == (most if ERROR_CODES[code].retry else 1)


def test_a_damaged_answer_is_asked_for_once_more_whatever_failed_before_and_in_every_call() -> None:
    retries = Retries(QUICK)
    codes = ["overloaded", "answer_damaged", "server_gone", "answer_damaged", "overloaded"]
    assert [failing(retries, codes) for _ in range(2)] == [codes[:4], codes[:4]]


def failing(retries: Retries, codes: list[str]) -> list[str]:
    """The failures of a call that are its client's until one is the caller's, that one too."""
    sent: list[str] = []
    try:
        for attempt in retries.attempts(NEVER, threading.Event()):
            with attempt:
                sent.append(codes[len(sent)])
                raise InflightError("it failed", sent[-1])
    except InflightError:
        pass
    return sent


def test_other_exceptions_are_the_callers() -> None:
    sent: list[int] = []
    with pytest.raises(ZeroDivisionError):
        fail(Retries(QUICK), ZeroDivisionError(), sent, NEVER, threading.Event())
    assert sent == [1]


def test_retries_can_be_switched_off() -> None:
    assert attempts(Retries(NO_RETRY), "overloaded") == 1


def test_a_clients_calls_share_one_budget() -> None:
    retries = Retries(Retry(wait_initial=0.001, wait_max=0.001, budget=10, budget_ratio=0.1))
    sent = sum(attempts(retries, "overloaded") for _ in range(100))
    assert 100 + 10 <= sent <= 100 + 10 + 10, "the reserve, and a tenth of the calls"


def test_a_budget_fills_again_with_the_calls() -> None:
    budget = RetryBudget(Retry(budget=2, budget_ratio=0.5))
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()
    for _ in range(100):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


class SkippedWaits(threading.Event):
    """Written down instead of waited for; the clock goes on by each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seconds = 0.0
        clock = time.monotonic
        monkeypatch.setattr("time.monotonic", lambda: clock() + self.seconds)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds += timeout
        return False


@pytest.mark.parametrize(
    ("retry", "seconds", "most"),
    [
        (Retry(wait_initial=50, wait_max=100), 0.5, 0.5),
        (Retry(wait_initial=0.1, wait_max=100), 9, 9),
        (Retry(timeout=9, wait_initial=0.1, wait_max=100), None, 9),
        (Retry(timeout=9, wait_initial=0.1, wait_max=100), 100, 9),
    ],
)
def test_no_wait_goes_past_the_deadline(
    retry: Retry, seconds: float | None, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = SkippedWaits(monkeypatch)
    attempts(Retries(retry), "overloaded", Deadline(seconds), waits)
    assert waits.seconds < most


def test_who_gives_up_waits_no_more() -> None:
    given_up = threading.Event()
    threading.Timer(0.1, given_up.set).start()
    retry = Retry(timeout=10_000, wait_initial=1000, wait_max=1000)
    attempts(Retries(retry), "overloaded", given_up=given_up)  # else the test's own timeout is over long before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("timeout", value) for value in (None, math.inf, "30")),
        *(("wait_initial", -1), ("wait_max", math.nan), ("budget_ratio", True)),
        *(("attempts", 0), ("attempts", 2.5), ("budget", -1)),
    ],
)
def test_a_retry_that_can_not_be_followed_is_refused(name: str, value: Any) -> None:
    with raises(InflightError, "invalid_parameter", naming=f"{name} is {value!r}"):
        Retry(**{name: value})


def test_the_first_wait_is_the_longest_before_the_first_retry_and_doubles() -> None:
    rules = Retries(Retry(wait_initial=4, wait_max=9)).attempts(NEVER, threading.Event())
    state = RetryCallState(rules, None, (), {})
    for state.attempt_number, most in ((1, 4), (2, 8), (3, 9), (9, 9)):
        waits = [rules.wait(state) for _ in range(200)]
        assert most * 0.8 < max(waits) <= most
        assert min(waits) < most * 0.2


def test_the_wait_is_at_least_what_the_server_asks_for() -> None:
    rules = Retries(QUICK).attempts(NEVER, threading.Event())
    state = RetryCallState(rules, None, (), {})
    error = InflightError("too many requests wait already", "overloaded")
    error.retry_after = 7
    state.set_exception((type(error), error, None))
    assert rules.wait(state) == 7

"""What Triton may still hold is kept until it has answered a question that was asked later."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from inflight.runtime.triton.stub.retained_responses import RetainedResponses, Turns


class StubResponses:
    """A stand-in for Triton's iterator, to be seen when it goes."""


def kept(spent: RetainedResponses) -> weakref.ref[StubResponses]:
    responses = StubResponses()
    spent.retain(responses)
    return weakref.ref(responses)


def test_they_go_with_the_answer_to_a_question_that_was_asked_later() -> None:
    spent, during = RetainedResponses(), []
    before = kept(spent)

    def ask() -> bool:
        assert before() is not None
        during.append(kept(spent))
        return False

    assert spent.release_after(ask) is False
    gc.collect()
    assert (before(), during[0]() is None) == (None, False)
    assert spent.release_after(lambda: False) is False
    assert during[0]() is None


def test_they_stay_where_the_answer_may_be_an_earlier_one() -> None:
    spent = RetainedResponses()
    before = kept(spent)
    assert spent.release_after(lambda: True) is True
    assert before() is not None
    with pytest.raises(ZeroDivisionError):
        spent.release_after(lambda: bool(1 // 0))
    assert before() is not None
    spent.release_after(lambda: False)
    assert before() is None


def test_none_outlives_the_memory_that_it_shares_with_triton() -> None:
    spent = RetainedResponses()
    before = kept(spent)
    spent.close()
    assert before() is None
    assert kept(spent)() is None


def test_threads_of_two_kinds_run_by_turns_and_both_get_theirs() -> None:
    turns, inside, wrong, done = Turns(), [0, 0], [], [0, 0]

    def run(kind: int) -> None:
        for _ in range(200):
            with turns.of(kind):
                inside[kind] += 1
                wrong.append(inside[1 - kind])
                inside[kind] -= 1
            done[kind] += 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(run, [0, 1] * 4))
    assert (done, sum(wrong)) == ([800, 800], 0)


def test_a_kind_that_waits_gets_its_turn_though_the_other_never_pauses() -> None:
    turns, came = Turns(), threading.Event()
    with ThreadPoolExecutor(3) as threads:

        def call(until: threading.Event) -> None:
            while not until.is_set():
                with turns.of(0):
                    until.wait(0.001)

        def read() -> None:
            with turns.of(1):
                pass
            with turns.of(1):
                came.set()

        callers = [threads.submit(call, came) for _ in range(2)]
        threads.submit(read).result(10)
        for caller in callers:
            caller.result(10)
    assert came.is_set()


def test_no_call_returns_while_a_thread_waits_for_a_response() -> None:
    """Otherwise Triton's stub may wait for ever."""
    spent, waiting, arrived = RetainedResponses(), threading.Event(), threading.Event()
    returned: list[str] = []

    class Request:
        def exec(self, decoupled: bool) -> Iterator[str]:
            returned.append("call")
            return responses()

    def responses() -> Iterator[str]:
        yield "first"
        waiting.set()
        assert arrived.wait(10)
        returned.append("response")
        yield "second"

    with ThreadPoolExecutor(2) as threads:
        read = threads.submit(list, spent.call(Request()))
        assert waiting.wait(10)
        second = threads.submit(spent.call, Request())
        with pytest.raises(TimeoutError):
            second.result(0.1)
        arrived.set()
        assert read.result(10) == ["first", "second"]
        second.result(10)
    assert returned == ["call", "response", "call"]

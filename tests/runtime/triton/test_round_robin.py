"""Long jobs advance in turn, beside what is short."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

from inflight.common.request_error import RequestError
from inflight.runtime.triton.round_robin import RoundRobinExecutor
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until

SOON = 60.0


def test_each_job_advances_by_a_piece_in_turn() -> None:
    steps, reports, all_there, ended = list[str](), list[str](), threading.Event(), threading.Event()

    def job(name: str, pieces: int) -> Iterator[None]:
        for _ in range(pieces):
            all_there.wait(SOON)
            steps.append(name)
            yield
        if name == "long":
            ended.set()

    turns = RoundRobinExecutor(3, reports.append)
    for name, pieces in (("long", 4), ("short", 1), ("middle", 2)):
        turns.submit(job(name, pieces), 1)
    all_there.set()
    assert ended.wait(SOON)
    turns.close()
    assert steps == ["long", "short", "middle", "long", "middle", "long", "long"]
    assert not reports


def test_a_job_that_raises_ends_alone_and_too_much_is_refused() -> None:
    reports, free, ended = list[str](), threading.Event(), threading.Event()

    def broken() -> Iterator[None]:
        free.wait(SOON)
        yield
        raise ValueError("broken")

    def last() -> Iterator[None]:
        yield
        ended.set()

    turns = RoundRobinExecutor(20, reports.append)
    turns.submit(broken(), 15)
    turns.submit(last(), 5)
    with raises(RequestError, "overloaded"):
        turns.submit(last(), 1)
    free.set()
    assert ended.wait(SOON)
    ended.clear()

    def is_taken() -> bool:
        with suppress(RequestError):
            turns.submit(last(), 30)
            return True
        return False

    wait_until(is_taken)  # the last job's end is accounted for behind it
    assert ended.wait(SOON), "one alone may be larger"
    turns.close()
    assert len(reports) == 1

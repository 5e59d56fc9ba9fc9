"""Answers that are open: stopped by their request's id, and cancelled when their client has left."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from inflight.runtime.triton.active_requests import ActiveRequests

SOON = 10


@dataclass
class StubRequest:
    """An answer as the watch sees it."""

    handle: int
    key: int = 0
    has_left: bool = False
    disconnected: bool = False

    def is_disconnected(self) -> bool:
        return self.has_left


@pytest.fixture
def cancelled() -> queue.Queue[int]:
    return queue.Queue()


@pytest.fixture
def answers(cancelled: queue.Queue[int]) -> Iterator[ActiveRequests]:
    answers = ActiveRequests(cancelled.put, 0.01, print)
    yield answers
    answers.close()


def test_stop_cancels_all_of_one_id_and_nothing_else(answers: ActiveRequests, cancelled: queue.Queue[int]) -> None:
    for request_id, handle in (("a", 1), ("a", 2), ("b", 3), ("", 4)):
        answers.add(request_id, StubRequest(handle))
    answers.stop("a")
    assert {cancelled.get(timeout=SOON), cancelled.get(timeout=SOON)} == {1, 2}
    answers.stop("unknown")
    assert cancelled.empty()


def test_stop_cancels_one_stream_where_it_says_which(answers: ActiveRequests, cancelled: queue.Queue[int]) -> None:
    for handle, key in ((1, 7), (2, 8), (3, 0)):
        answers.add("a", StubRequest(handle, key))
    answers.stop("a", key=8)
    assert cancelled.get(timeout=SOON) == 2
    assert cancelled.empty()


def test_what_has_ended_is_not_stopped(answers: ActiveRequests, cancelled: queue.Queue[int]) -> None:
    ended, running = StubRequest(1), StubRequest(2)
    answers.add("a", ended)
    answers.add("a", running)
    answers.remove("a", ended)
    answers.remove("a", ended)
    answers.stop("a")
    assert cancelled.get(timeout=SOON) == 2
    assert cancelled.empty()


def test_a_client_that_left_while_its_request_waits_is_noticed(
    answers: ActiveRequests, cancelled: queue.Queue[int]
) -> None:
    left, stays = StubRequest(1), StubRequest(2)
    answers.add("", stays)
    answers.add("", left)
    left.has_left = True
    assert cancelled.get(timeout=SOON) == 1
    assert (left.disconnected, stays.disconnected) == (True, False)
    with pytest.raises(queue.Empty):
        cancelled.get(timeout=0.1)  # once is enough


def test_a_request_that_the_engine_has_not_taken_is_cancelled_once_it_has(
    answers: ActiveRequests, cancelled: queue.Queue[int]
) -> None:
    early = StubRequest(0, has_left=True)
    answers.add("", early)
    with pytest.raises(queue.Empty):
        cancelled.get(timeout=0.1)
    early.handle = 5
    assert cancelled.get(timeout=SOON) == 5


class FailingStubRequest(StubRequest):
    """An answer about which Triton knows nothing any more."""

    def is_disconnected(self) -> bool:
        raise ValueError("no such request")


def test_one_that_can_not_be_asked_keeps_no_other_from_being_noticed(cancelled: queue.Queue[int]) -> None:
    reports: list[str] = []
    answers = ActiveRequests(cancelled.put, 0.01, reports.append)
    answers.add("", FailingStubRequest(1))
    left = StubRequest(2)
    answers.add("", left)
    for handle in (2, 3):
        left.has_left = True
        assert cancelled.get(timeout=SOON) == handle
        left = StubRequest(3)
        answers.add("", left)
    assert reports == ["a disconnected client could not be detected: ValueError: no such request"]
    answers.close()

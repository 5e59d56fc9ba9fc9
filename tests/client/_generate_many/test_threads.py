"""Many prompts at once: when they are read, and when their answers are handed out, whatever stalls."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from inflight_client import Client, Generation, InvalidRequest
from inflight_client.result_order import CLOSE_TIMEOUT, READ_AHEAD_FACTOR

from tests.client.support.gated_server import (
    PROMPTS,
    SOON,
    WAIT,
    AnswerGate,
    SourceError,
    failing,
    texts,
    waiting_later,
)
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until


def waiting(prompts: Iterable[str], go: threading.Event) -> Iterator[str]:
    """Prompts, and then a wait for more that may never come."""
    yield from prompts
    go.wait()


@pytest.mark.parametrize("as_completed", [False, True])
def test_what_is_answered_is_handed_out_while_the_source_waits(held_client: Client, as_completed: bool) -> None:
    never = threading.Event()
    answers = held_client.generate_many(waiting(PROMPTS, never), concurrency=4, as_completed=as_completed)
    with closing(answers):
        came = list(itertools.islice(answers, len(PROMPTS)))
        began = time.monotonic()
    assert time.monotonic() - began < CLOSE_TIMEOUT  # no caller waits for the source
    never.set()
    assert sorted(texts(came)) == sorted(PROMPTS)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_prompts_may_depend_on_answers(held_client: Client, concurrency: int) -> None:
    prompts: queue.Queue[str] = queue.Queue()
    prompts.put("0")

    def source() -> Iterator[str]:
        for _ in range(5):
            yield prompts.get(timeout=SOON)

    said = []
    for _, answer in held_client.generate_many(source(), concurrency=concurrency, as_completed=True):
        said.append(answer.text)
        prompts.put(str(int(answer.text) + 1))
    assert said == ["0", "1", "2", "3", "4"]


def test_a_slow_answer_holds_up_no_others(held_client: Client, held: AnswerGate) -> None:
    answers = held_client.generate_many([WAIT, *PROMPTS], concurrency=2, as_completed=True)
    others = [next(answers) for _ in PROMPTS]
    assert [place for place, _ in others] == list(range(1, 13))
    held.go.set()
    assert [(place, answer.text) for place, answer in answers] == [(0, WAIT)]


def test_in_order_no_more_is_read_than_is_soon_handed_out(held_client: Client, held: AnswerGate) -> None:
    """The first answer waits: the others are asked for, up to a bound, and then handed out in their order."""
    source = _Counted(itertools.chain([WAIT], map(str, itertools.count(1))))
    answers = held_client.generate_many(source, concurrency=2)
    first: list[Generation] = []
    reader = threading.Thread(target=lambda: first.append(next(answers)))
    reader.start()
    wait_until(lambda: len(held.asked) == 2 * READ_AHEAD_FACTOR)
    assert source.read == 2 * READ_AHEAD_FACTOR
    held.go.set()
    reader.join(SOON)
    with closing(answers):
        assert texts([*first, *itertools.islice(answers, 20)]) == [WAIT, *map(str, range(1, 21))]
    assert source.read <= 21 + 2 * READ_AHEAD_FACTOR


class _Counted(Iterator[str]):
    """Prompts, and how many of them were read."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self._prompts = iter(prompts)
        self.read = 0

    def __next__(self) -> str:
        self.read += 1
        return next(self._prompts)


@pytest.mark.parametrize("as_completed", [False, True])
@pytest.mark.parametrize("prompts", [[], PROMPTS[:5]])
def test_a_source_that_raises_loses_no_answer(held_client: Client, prompts: list[str], as_completed: bool) -> None:
    came: list[Any] = []
    with pytest.raises(SourceError):
        _take(held_client.generate_many(failing(prompts), concurrency=2, as_completed=as_completed), came)
    assert sorted(texts(came)) == prompts


def _take(answers: Iterable[Any], came: list[Any]) -> None:
    """All of them, and those before an error, too."""
    for answer in answers:
        came.append(answer)  # extend would lose them


def test_a_refused_prompt_stands_in_its_place(held_client: Client) -> None:
    prompts: list[Any] = ["a", [], "b"]
    first, second, third = held_client.generate_many(prompts, concurrency=1, return_errors=True)
    assert isinstance(second, InvalidRequest)
    assert texts([first, third]) == ["a", "b"]
    answers = held_client.generate_many(prompts, concurrency=1)
    assert next(answers).text == "a"
    with pytest.raises(InvalidRequest):
        next(answers)


@pytest.mark.parametrize("as_completed", [False, True])
def test_without_prompts_there_are_no_answers(held_client: Client, as_completed: bool) -> None:
    assert list(held_client.generate_many([], as_completed=as_completed)) == []


def _agenerator() -> AsyncIterator[str]:
    return waiting_later(["tea"])


@pytest.mark.parametrize("make", [_agenerator, lambda: "one text", lambda: 7])
def test_what_is_no_source_is_refused_at_once(held_client: Client, make: Callable[[], Any]) -> None:
    with raises(InvalidRequest, "invalid_parameter", naming="prompts"):
        held_client.generate_many(make())


def test_thousands_of_prompts_take_the_memory_of_a_few(held_client: Client) -> None:
    """They are refused before they are sent, so that it takes a moment; each is of some size."""
    prompts: Iterator[Any] = ({"prompt": number, "text": "x" * 10_000} for number in range(3000))
    tracemalloc.start()
    try:
        places = [
            place
            for place, outcome in held_client.generate_many(prompts, as_completed=True, return_errors=True)
            if isinstance(outcome, InvalidRequest)
        ]
        assert tracemalloc.get_traced_memory()[1] < 10e6  # together they are 30 MB
    finally:
        tracemalloc.stop()
    assert sorted(places) == list(range(3000))

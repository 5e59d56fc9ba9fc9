"""Texts in, one result for each out, whatever the encoder does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.batch_planner import PlannerLimits, padded_length
from inflight.runtime.encoders.batch_runner import Batcher, Computed, Requeue
from inflight.runtime.encoders.encoder import EncoderEngine, EncoderInput
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until

FAILS, NAN = 666, 777
"""First token ids of texts that make a whole micro-batch fail, or their own row NaN."""


class SumEncoder:
    """Returns the first token and the sum of each text. `gate` is closed while a micro-batch must not end."""

    packed = False

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []

    def padded_length(self, tokens: int) -> int:
        return padded_length(tokens, 512)

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        self.batches.append(len(texts))
        self.gate.wait(30)
        if any(text.token_ids[0] == FAILS for text in texts):
            raise RuntimeError("a text that the engine does not take")
        rows = np.array([[text.token_ids[0], text.token_ids.sum()] for text in texts], np.float32)
        rows[rows[:, 0] == NAN] = np.nan
        return rows


class Asked:
    """A request that keeps its results."""

    def __init__(self) -> None:
        self.cancelled = False
        self.results: dict[int, tuple[Any, RequestError | None]] = {}

    def deliver(self, index: int, row: Any, error: RequestError | None) -> None:
        assert index not in self.results
        self.results[index] = row, error

    def end_if_cancelled(self) -> bool:
        return self.cancelled


def text(first: int, tokens: int = 3) -> EncoderInput:
    return EncoderInput(np.array([first, *[1] * (tokens - 1)], np.int32))


@contextmanager
def batching(
    *encoders: SumEncoder, max_queue_texts: int = 1000, computed: Callable[[Computed], None] = lambda batch: None
) -> Iterator[Batcher]:
    engines = [EncoderEngine(encoder) for encoder in encoders]
    batcher = Batcher(engines, PlannerLimits(64, 16, 10.0), max_queue_texts, computed, lambda line: None)
    try:
        yield batcher
    finally:
        for encoder in encoders:
            encoder.gate.set()
        batcher.close()


def ask(batcher: Batcher, firsts: Sequence[int], tokens: int = 3) -> Asked:
    request = Asked()
    batcher.reserve(len(firsts))
    batcher.add(request, [(index, text(first, tokens)) for index, first in enumerate(firsts)], [0] * len(firsts))
    return request


@pytest.mark.parametrize("workers", [1, 3])
def test_each_text_of_many_requests_gets_its_own_row(workers: int) -> None:
    seen: list[Computed] = []
    with batching(*(SumEncoder() for _ in range(workers)), computed=seen.append) as batcher:
        requests = [ask(batcher, range(first, first + 7), 2 + first % 9) for first in range(0, 350, 7)]
        wait_until(lambda: all(len(request.results) == 7 for request in requests))
        wait_until(lambda: batcher.waiting_texts == 0 and sum(len(batch.waits) for batch in seen) == 350)
    for number, request in enumerate(requests):
        for index, (row, error) in request.results.items():
            first, tokens = 7 * number + index, 2 + (7 * number) % 9
            assert error is None
            assert row.tolist() == [first, first + tokens - 1]
    assert sum(batch.real_tokens for batch in seen) == sum(7 * (2 + first % 9) for first in range(0, 350, 7))
    assert all(batch.padded_tokens >= batch.real_tokens for batch in seen)


def test_an_encoder_that_packs_texts_computes_no_padding() -> None:
    seen: list[Computed] = []
    encoder = SumEncoder()
    encoder.packed = True
    with batching(encoder, computed=seen.append) as batcher:
        requests = [ask(batcher, [1, 2], tokens) for tokens in (3, 9)]
        wait_until(lambda: all(len(request.results) == 2 for request in requests))
    assert sum(batch.padded_tokens for batch in seen) == sum(batch.real_tokens for batch in seen) == 24


@pytest.mark.parametrize("bad", [FAILS, NAN])
def test_only_the_text_at_fault_fails(bad: int) -> None:
    encoder = SumEncoder()
    with batching(encoder) as batcher:
        encoder.gate.clear()
        ask(batcher, [1])
        wait_until(lambda: encoder.batches)
        request = ask(batcher, [10, 11, bad, 12, 13])
        encoder.gate.set()
        wait_until(lambda: len(request.results) == 5)
    assert encoder.batches[1] == 5
    errors = {index: error.code for index, (_, error) in request.results.items() if error is not None}
    assert errors == {2: "text_not_computed"}
    assert [request.results[index][0][0] for index in (0, 1, 3, 4)] == [10, 11, 12, 13]


def test_a_text_alone_is_computed_again_before_it_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SumEncoder()
    failures = iter([RuntimeError("its process was killed")])
    run = encoder.run

    def fail_once(texts: Sequence[EncoderInput]) -> Any:
        for failure in failures:
            raise failure
        return run(texts)

    monkeypatch.setattr(encoder, "run", fail_once)
    with batching(encoder) as batcher:
        request = ask(batcher, [10])
        wait_until(lambda: request.results)
    assert request.results[0][0][0] == 10


def test_more_texts_than_the_queue_takes_are_refused() -> None:
    encoder = SumEncoder()
    with batching(encoder, max_queue_texts=10) as batcher:
        encoder.gate.clear()
        first = ask(batcher, [1])
        wait_until(lambda: encoder.batches)
        large = ask(batcher, range(20))  # an empty queue takes any request
        with raises(RequestError, "overloaded", naming="10"):
            batcher.reserve(1)
        encoder.gate.set()
        wait_until(lambda: len(first.results) + len(large.results) == 21)
        batcher.reserve(10)


def test_a_cancelled_request_leaves_a_queue_of_thousands() -> None:
    encoder = SumEncoder()
    with batching(encoder, max_queue_texts=3000) as batcher:
        encoder.gate.clear()
        ask(batcher, [1])
        wait_until(lambda: encoder.batches)
        requests = [ask(batcher, [5]) for _ in range(2500)]
        left = requests[1200], requests[-1]
        for request in left:
            request.cancelled = True
        wait_until(lambda: batcher.waiting_texts == 2498)
        encoder.gate.set()
        wait_until(lambda: batcher.waiting_texts == 0 and requests[-2].results)
    assert [request.results for request in left] == [{}, {}]
    assert sum(encoder.batches) == 2499


def test_a_text_with_a_higher_priority_waits_for_the_running_micro_batch_only() -> None:
    encoder = SumEncoder()
    with batching(encoder) as batcher:
        encoder.gate.clear()
        bulk = ask(batcher, range(40), tokens=30)
        wait_until(lambda: encoder.batches)
        urgent = Asked()
        batcher.reserve(1)
        batcher.add(urgent, [(0, text(5, 10))], [1])
        done_before: list[int] = []
        deliver = urgent.deliver

        def noted(index: int, row: Any, error: RequestError | None) -> None:
            done_before.append(len(bulk.results))
            deliver(index, row, error)

        urgent.deliver = noted  # type: ignore[method-assign]
        encoder.gate.set()
        wait_until(lambda: done_before)
    assert done_before[0] <= encoder.batches[0]


def running(number: int) -> bool:
    return any(thread.name == f"encoder-{number}" for thread in threading.enumerate())


def test_idle_threads_end_while_another_computes() -> None:
    encoders = [SumEncoder() for _ in range(3)]
    with batching(*encoders) as batcher:
        for encoder in encoders:
            encoder.gate.clear()
        for _ in encoders:
            ask(batcher, [1], tokens=40)
        wait_until(lambda: all(encoder.batches for encoder in encoders))
        for encoder in encoders[1:]:
            encoder.gate.set()
        closing = threading.Thread(target=batcher.close)
        closing.start()
        wait_until(lambda: not running(1) and not running(2), "the idle threads", 4)
        assert running(0)
        encoders[0].gate.set()
        closing.join()


def test_the_results_of_computed_texts_are_delivered_before_it_is_closed() -> None:
    encoder, request = SumEncoder(), Asked()
    deliver = request.deliver

    def late(index: int, row: Any, error: RequestError | None) -> None:
        wait_until(lambda: not running(0))  # close has ended it
        time.sleep(0.02)
        deliver(index, row, error)

    request.deliver = late  # type: ignore[method-assign]
    with batching(encoder) as batcher:
        batcher.reserve(9)
        batcher.add(request, [(index, text(index, 40)) for index in range(9)], [0] * 9)
        wait_until(lambda: len(encoder.batches) == 9)
    assert sorted(request.results) == list(range(9))


class CountdownEngine:
    """Computes a text again, with its first token less one, until that is 0; each first token is a group."""

    packed, noun = False, "text"

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def padded_length(self, tokens: int) -> int:
        return tokens

    def run(self, inputs: Sequence[Counted]) -> Sequence[Any]:
        self.batches.append([each.group for each in inputs])
        return [Requeue(Counted(each.group - 1)) if each.group else "done" for each in inputs]

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Counted:
    group: int
    size: int = 1


def test_a_text_that_is_computed_again_holds_up_no_other() -> None:
    engine, slow, quick = CountdownEngine(), Asked(), Asked()
    batcher = Batcher([engine], PlannerLimits(64, 4, 10.0), 5, lambda batch: None, lambda line: None, window_s=0.5)
    try:
        batcher.reserve(5)
        batcher.add(slow, [(0, Counted(3))], [0])
        batcher.add(quick, [(index, Counted(0)) for index in range(3)], [0] * 3)
        wait_until(lambda: slow.results and len(quick.results) == 3)
    finally:
        batcher.close()
    assert engine.batches == [[3], [0, 0, 0], [2], [1], [0]] or engine.batches == [[3], [2], [1], [0, 0, 0, 0]]
    assert batcher.waiting_texts == 1


def test_an_idle_engine_waits_for_further_texts_but_not_when_its_batch_is_full() -> None:
    engine, began = CountdownEngine(), time.monotonic()
    batcher = Batcher([engine], PlannerLimits(64, 4, 10.0), 99, lambda batch: None, lambda line: None, window_s=60)
    try:
        requests = [Asked() for _ in range(4)]
        for request in requests:
            batcher.reserve(1)
            batcher.add(request, [(0, Counted(0))], [0])
            time.sleep(0.01)
        wait_until(lambda: all(request.results for request in requests))
    finally:
        batcher.close()
    assert engine.batches == [[0] * 4]
    assert time.monotonic() - began < 60

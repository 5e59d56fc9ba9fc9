"""Scheduler's queue: priorities, deadlines, its bound, what the library refuses, and the shortest recent step."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine import scheduler
from inflight.runtime.engine.scheduler import RECENT_NS, Scheduler, StepTimes
from inflight.runtime.messages import FinishReason, GenerationRequest, SamplingConfig
from tests.fixtures.errors import raises
from tests.runtime.engine.fake_scheduler import (
    REFUSE_TOKEN,
    EventCollector,
    answered,
    expected_answer,
    ignore_event,
    keep_ends,
    request_of,
    run_dry,
    scheduler_of,
)

SECOND_NS = 1_000_000_000
FOREVER = 4000
"""Tokens of an answer that takes longer than any test."""


def in_seconds(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * SECOND_NS)


def turn_until_ended(engine: Scheduler, answer: EventCollector) -> None:
    while not answer.ended:
        engine.step()


def test_a_higher_priority_leaves_the_queue_first() -> None:
    engine, ended = scheduler_of(max_num_sequences=1), list[int]()
    first, low, high, higher, high_too = [
        engine.submit(replace(request_of(), priority=priority), keep_ends(ended)) for priority in (0, 0, 3, 7, 3)
    ]
    run_dry(engine)
    assert ended == [higher, high, high_too, first, low]


def test_a_running_request_is_never_thrown_out_for_one_of_higher_priority() -> None:
    engine, ended = scheduler_of(max_num_sequences=1), list[int]()
    running = engine.submit(request_of(), keep_ends(ended))
    engine.step()
    high = engine.submit(replace(request_of(), priority=9), keep_ends(ended))
    run_dry(engine)
    assert ended == [running, high]


def test_a_deadline_ends_a_waiting_request_while_another_runs_on() -> None:
    """The cache is full, and will be for long."""
    engine = scheduler_of(kv_cache_tokens=5000, step_seconds="0.002")
    running, late = EventCollector(), EventCollector()
    engine.submit(request_of(answer=FOREVER), running)
    engine.step()
    engine.submit(replace(request_of(answer=FOREVER), deadline_ns=in_seconds(0.05)), late)
    turn_until_ended(engine, late)
    assert late.reason is FinishReason.DEADLINE
    assert late.end.error is None
    assert late.end.timings is not None
    assert late.end.timings.admitted_ns == 0
    assert late.tokens == []
    assert not running.ended
    assert engine.stats().waiting == 0


def test_a_running_request_ends_at_its_deadline_with_what_it_has_and_makes_room() -> None:
    engine = scheduler_of(kv_cache_tokens=5000, step_seconds="0.002")
    request = replace(request_of(answer=FOREVER), deadline_ns=in_seconds(0.1))
    late, next_one = EventCollector(), EventCollector()
    engine.submit(request, late)
    engine.submit(request_of(answer=FOREVER), next_one)
    turn_until_ended(engine, late)
    assert late.reason is FinishReason.DEADLINE
    assert 0 < len(late.tokens) < FOREVER
    assert late.tokens == expected_answer(request)[: len(late.tokens)]
    assert next_one.events, "the place that the late one left is not free before the next forward pass"


def test_a_hopeless_request_is_dropped_and_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline has not passed, but no step has been so short lately as what is left. There is room for it."""
    monkeypatch.setattr(scheduler, "RECENT_NS", 3600 * SECOND_NS)
    engine, hopeless = scheduler_of(step_seconds="0.2"), EventCollector()
    engine.submit(request_of(answer=50), ignore_event)
    engine.step()
    engine.submit(replace(request_of(), deadline_ns=in_seconds(0.1), priority=9), hopeless)
    engine.step()
    assert hopeless.reason is FinishReason.DEADLINE
    assert hopeless.end.timings is not None
    assert hopeless.end.timings.admitted_ns == 0
    assert engine.stats().running == 1


def test_a_running_request_ends_at_the_moment_of_its_deadline_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    engine, answer = scheduler_of(), EventCollector()
    engine.submit(replace(request_of(answer=50), deadline_ns=now[0] + 1000), answer)
    now[0] += 999
    engine.step()
    assert not answer.ended
    now[0] += 1
    engine.step()
    assert (len(answer.tokens), answer.reason) == (1, FinishReason.DEADLINE)


def test_a_deadline_that_is_far_changes_nothing() -> None:
    answer = answered(scheduler_of(), replace(request_of(answer=5), deadline_ns=in_seconds(3600)))
    assert (len(answer.tokens), answer.reason) == (5, FinishReason.LENGTH)


def test_the_bound_counts_what_waits_beyond_what_the_next_turn_admits() -> None:
    engine = scheduler_of(kv_cache_tokens=10_000, max_num_sequences=2, max_queue_size=3)
    handles = [engine.submit(request_of(), ignore_event) for _ in range(5)]
    refuse(engine, request_of())
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 3)
    refuse(engine, request_of())
    engine.cancel(handles[0])
    engine.submit(request_of(), ignore_event)
    refuse(engine, request_of())
    run_dry(engine)


def test_the_bound_counts_what_the_cache_can_not_take_yet() -> None:
    engine = scheduler_of(kv_cache_tokens=2 * 32, max_num_sequences=9, max_queue_size=1)
    engine.submit(request_of(prompt=30, answer=30), ignore_event)
    engine.submit(request_of(prompt=30, answer=30), ignore_event)
    refuse(engine, request_of(prompt=1, answer=1))


def test_what_is_refused_leaves_no_trace_and_what_is_late_makes_room() -> None:
    engine, late = scheduler_of(max_num_sequences=1, max_queue_size=1), EventCollector()
    engine.submit(request_of(), ignore_event)
    engine.submit(replace(request_of(), deadline_ns=in_seconds(-1)), late)
    engine.submit(request_of(), ignore_event)
    assert late.reason is FinishReason.DEADLINE
    refuse(engine, replace(request_of(), priority=9))
    run_dry(engine)
    assert engine.stats().kv_blocks_reserved == 0


def refuse(engine: Scheduler, request: GenerationRequest) -> None:
    waiting = engine.stats().waiting
    with raises(RequestError, "overloaded", naming="Exceeds maximum queue size"):
        engine.submit(request, ignore_event)
    assert engine.stats().waiting == waiting


def test_without_a_bound_any_number_may_wait() -> None:
    engine = scheduler_of(max_num_sequences=1)
    for _ in range(500):
        engine.submit(request_of(answer=1), ignore_event)
    assert engine.stats().waiting == 500
    run_dry(engine)


def test_what_the_library_refuses_ends_alone_and_in_one_line() -> None:
    engine, refused, plain = scheduler_of(kv_cache_tokens=32), EventCollector(), EventCollector()
    engine.submit(GenerationRequest((REFUSE_TOKEN, 5), 4), refused)
    engine.submit(request_of(), plain)
    run_dry(engine)
    assert refused.end.error == (
        "the engine refused the request: the fake engine refused because it was asked to",
        "invalid_request",
    )
    assert plain.reason is FinishReason.LENGTH
    assert engine.stats().kv_blocks_reserved == 0


def test_a_beam_search_takes_a_place_for_each_beam() -> None:
    engine = scheduler_of(kv_cache_tokens=10_000, max_num_sequences=4)
    for width in (3, 2, 1):
        engine.submit(replace(request_of(), sampling=SamplingConfig(beam_width=width)), ignore_event)
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (1, 2)
    run_dry(engine)
    assert answered(engine, replace(request_of(), sampling=SamplingConfig(beam_width=4))).end.beams


def test_the_shortest_recent_step_counts() -> None:
    times = StepTimes()
    assert times.shortest(now_ns=100) == 0
    times.add(0, 50)
    times.add(50, 70)
    times.add(70, 110)
    assert times.shortest(now_ns=110) == 20


def test_steps_are_forgotten_after_a_rest() -> None:
    times = StepTimes()
    times.add(0, 50)
    assert times.shortest(50 + RECENT_NS - 1) == 50
    assert times.shortest(50 + RECENT_NS) == 0


def test_only_the_latest_count() -> None:
    times = StepTimes()
    times.add(0, 1)
    for start in range(1, 1000, 10):
        times.add(start, start + 10)
    assert times.shortest(1001) == 10

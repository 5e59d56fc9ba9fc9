"""Scheduler over the fake stepper: admission, order, cancelling, one end for each request."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from inflight.common.request_error import RequestError
from inflight.runtime.messages import FinishReason, GenerationRequest, TokenEvent
from tests.fixtures.errors import raises
from tests.runtime.engine.fake_scheduler import (
    FAIL_TOKEN,
    expected_answer,
    keep_ends,
    request_of,
    run_dry,
    scheduler_of,
)


def test_the_answer_comes_a_token_a_turn_and_ends_once() -> None:
    engine, events = scheduler_of(), list[TokenEvent]()
    request = request_of(prompt=3, answer=5)
    handle = engine.submit(request, events.append)
    assert events == []
    engine.step()
    assert [event.token_ids for event in events] == [(100,)]
    run_dry(engine)
    assert [token for event in events for token in event.token_ids] == expected_answer(request)
    assert [event.finish_reason for event in events] == [None] * 4 + [FinishReason.LENGTH]
    assert {event.handle for event in events} == {handle}


def test_the_moments_of_a_request_are_in_order() -> None:
    engine, events = scheduler_of(max_num_sequences=1), list[TokenEvent]()
    engine.submit(request_of(answer=3), lambda event: None)
    engine.submit(request_of(answer=3), events.append)
    run_dry(engine)
    first, *others, last = events
    assert all(event.timings is None for event in others)
    timings = last.timings
    assert timings is not None
    assert first.timings == replace(timings, end_ns=0)
    moments = [timings.arrival_ns, timings.admitted_ns, timings.first_token_ns, timings.end_ns]
    assert all(earlier < later for earlier, later in pairwise(moments))


def test_a_request_cancelled_while_it_waits_was_never_admitted() -> None:
    engine, events = scheduler_of(max_num_sequences=1), list[TokenEvent]()
    engine.submit(request_of(), lambda event: None)
    handle = engine.submit(request_of(), events.append)
    engine.step()
    engine.cancel(handle)
    (event,) = events
    assert event.finish_reason is FinishReason.CANCELLED
    assert event.timings is not None
    assert (event.timings.admitted_ns, event.timings.first_token_ns) == (0, 0)
    assert event.timings.end_ns > event.timings.arrival_ns


def test_the_blocks_of_what_runs_never_exceed_those_of_the_cache() -> None:
    """Of eight, six are taken; the next request needs three, one more than are left."""
    engine = scheduler_of(kv_cache_tokens=8 * 32, max_num_sequences=100)
    for blocks in (2, 2, 2, 3):
        engine.submit(request_of(prompt=32 * blocks - 24, answer=24), lambda event: None)
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_reserved) == (3, 1, 6)


def test_a_short_request_does_not_overtake_a_long_one_that_waits() -> None:
    engine = scheduler_of(kv_cache_tokens=4 * 32, max_num_sequences=100)
    ended: list[int] = []
    first = engine.submit(request_of(prompt=60, answer=30), keep_ends(ended))
    long = engine.submit(request_of(prompt=60, answer=30), keep_ends(ended))
    short = engine.submit(request_of(prompt=1, answer=1), keep_ends(ended))
    run_dry(engine)
    assert ended == [first, short, long]  # admitted together with the long one, and done sooner
    assert engine.stats().kv_blocks_reserved == 0


def test_cancelling_a_running_request_makes_room_for_the_next_turn() -> None:
    engine, events = scheduler_of(kv_cache_tokens=64, max_num_sequences=9), list[TokenEvent]()
    running = engine.submit(request_of(prompt=30, answer=30), events.append)
    engine.submit(request_of(prompt=30, answer=30), events.append)
    engine.step()
    engine.cancel(running)
    assert events[-1].finish_reason is FinishReason.CANCELLED
    assert engine.stats().kv_blocks_reserved == 0
    engine.step()
    assert engine.stats().running == 1
    assert events[-1].handle != running


def test_close_cancels_what_runs_and_what_waits() -> None:
    engine, events = scheduler_of(max_num_sequences=1), list[TokenEvent]()
    for _ in range(3):
        engine.submit(request_of(), events.append)
    engine.step()
    engine.close()
    assert engine.idle
    assert [event.finish_reason for event in events[1:]] == [FinishReason.CANCELLED] * 3


def test_a_request_that_could_never_run_is_refused_at_once() -> None:
    engine = scheduler_of(kv_cache_tokens=64)
    with raises(RequestError, "prompt_too_long"):
        engine.submit(request_of(prompt=60, answer=5), lambda event: None)
    assert engine.idle
    engine.submit(request_of(prompt=60, answer=4), lambda event: None)
    run_dry(engine)


def test_an_error_inside_a_step_comes_out_of_turn() -> None:
    """The library's state is unknown after it, so its process ends; see test_process."""
    engine = scheduler_of()
    engine.submit(GenerationRequest((FAIL_TOKEN, 5), max_tokens=4), lambda event: None)
    with raises(RuntimeError, naming="fake"):
        engine.step()

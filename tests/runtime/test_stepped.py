"""SteppedEngine over the fake stepper: admission, order, cancelling, one end for each request."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight.runtime.engine import EngineOptions
from inflight.runtime.fake import FakeStepper, expected_token
from inflight.runtime.messages import FinishReason, GenerationRequest, RequestError, TokenEvent
from inflight.runtime.stepped import SteppedEngine

NEVER = 10_000
FAIL_TOKEN = 1


def engine_of(kv_cache_tokens: int = 256, max_num_sequences: int = 4) -> SteppedEngine:
    options = EngineOptions("fake", "", kv_cache_tokens=kv_cache_tokens, max_num_sequences=max_num_sequences)
    options.extra["fail_token"] = str(FAIL_TOKEN)
    return SteppedEngine(FakeStepper(options))


def request_of(prompt: int = 10, answer: int = 5, first: int = 100) -> GenerationRequest:
    return GenerationRequest(prompt_ids=tuple(range(first, first + prompt)), max_tokens=answer)


def run_dry(engine: SteppedEngine) -> None:
    for _ in range(NEVER):
        if engine.idle:
            return
        engine.turn()
    pytest.fail("the engine never ran dry")


def expected_answer(request: GenerationRequest) -> list[int]:
    return [expected_token(request, position) for position in range(request.max_tokens)]


def test_the_answer_comes_a_token_a_turn_and_ends_once() -> None:
    engine, events = engine_of(), list[TokenEvent]()
    request = request_of(prompt=3, answer=5)
    handle = engine.submit(request, events.append)
    assert events == []
    engine.turn()
    assert [event.token_ids for event in events] == [(100,)]
    run_dry(engine)
    assert [token for event in events for token in event.token_ids] == expected_answer(request)
    assert [event.finish_reason for event in events] == [None] * 4 + [FinishReason.LENGTH]
    assert {event.handle for event in events} == {handle}


def test_an_end_token_ends_the_answer_and_is_not_part_of_it() -> None:
    engine, events = engine_of(), list[TokenEvent]()
    engine.submit(GenerationRequest((100, 101, 102), max_tokens=50, end_ids=(102,)), events.append)
    run_dry(engine)
    assert [token for event in events for token in event.token_ids] == [100, 101]
    assert events[-1].finish_reason is FinishReason.STOP


def test_the_moments_of_a_request_are_in_order() -> None:
    engine, events = engine_of(max_num_sequences=1), list[TokenEvent]()
    engine.submit(request_of(answer=3), lambda event: None)
    engine.submit(request_of(answer=3), events.append)
    run_dry(engine)
    assert all(event.timings is None for event in events[:-1])
    timings = events[-1].timings
    assert timings is not None
    moments = [timings.arrival_ns, timings.admitted_ns, timings.first_token_ns, timings.end_ns]
    assert all(earlier < later for earlier, later in pairwise(moments))


def test_a_request_cancelled_while_it_waits_was_never_admitted() -> None:
    engine, events = engine_of(max_num_sequences=1), list[TokenEvent]()
    engine.submit(request_of(), lambda event: None)
    handle = engine.submit(request_of(), events.append)
    engine.turn()
    engine.cancel(handle)
    (event,) = events
    assert event.finish_reason is FinishReason.CANCELLED
    assert event.timings is not None
    assert (event.timings.admitted_ns, event.timings.first_token_ns) == (0, 0)
    assert event.timings.end_ns > event.timings.arrival_ns


def test_a_flood_of_long_requests_waits_and_keeps_its_order() -> None:
    """Each takes two blocks of eight: four run at a time, the next is admitted when one ends."""
    engine = engine_of(kv_cache_tokens=8 * 32, max_num_sequences=100)
    ended: list[int] = []
    handles = [engine.submit(request_of(prompt=40, answer=24), keep_ends(ended)) for _ in range(20)]
    most = 0
    for _ in range(NEVER):
        if engine.idle:
            break
        engine.turn()
        stats = engine.stats()
        assert stats.kv_blocks_reserved <= stats.kv_blocks == 8
        most = max(most, stats.running)
    assert most == 4
    assert ended == handles


def test_a_short_request_does_not_overtake_a_long_one_that_waits() -> None:
    engine = engine_of(kv_cache_tokens=4 * 32, max_num_sequences=100)
    ended: list[int] = []
    first = engine.submit(request_of(prompt=60, answer=30), keep_ends(ended))
    long = engine.submit(request_of(prompt=60, answer=30), keep_ends(ended))
    short = engine.submit(request_of(prompt=1, answer=1), keep_ends(ended))
    run_dry(engine)
    assert ended == [first, short, long]  # admitted together with the long one, and done sooner
    assert engine.stats().kv_blocks_reserved == 0


def keep_ends(ended: list[int]) -> Callable[[TokenEvent], None]:
    def on_event(event: TokenEvent) -> None:
        if event.finish_reason is not None:
            ended.append(event.handle)

    return on_event


def test_no_more_run_than_max_num_sequences() -> None:
    engine = engine_of(kv_cache_tokens=100_000, max_num_sequences=3)
    for _ in range(7):
        engine.submit(request_of(), lambda event: None)
    engine.turn()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.steps) == (3, 4, 1)


def test_cancelling_a_running_request_makes_room_for_the_next_turn() -> None:
    engine, events = engine_of(kv_cache_tokens=64, max_num_sequences=9), list[TokenEvent]()
    running = engine.submit(request_of(prompt=30, answer=30), events.append)
    engine.submit(request_of(prompt=30, answer=30), events.append)
    engine.turn()
    engine.cancel(running)
    assert events[-1].finish_reason is FinishReason.CANCELLED
    assert engine.stats().kv_blocks_reserved == 0
    engine.turn()
    assert engine.stats().running == 1
    assert events[-1].handle != running


def test_cancelling_what_is_unknown_or_over_is_no_error() -> None:
    engine, events = engine_of(), list[TokenEvent]()
    handle = engine.submit(request_of(answer=1), events.append)
    run_dry(engine)
    engine.cancel(handle)
    engine.cancel(12345)
    assert len(events) == 1


def test_close_cancels_what_runs_and_what_waits() -> None:
    engine, events = engine_of(max_num_sequences=1), list[TokenEvent]()
    for _ in range(3):
        engine.submit(request_of(), events.append)
    engine.turn()
    engine.close()
    assert engine.idle
    assert [event.finish_reason for event in events[1:]] == [FinishReason.CANCELLED] * 3


def test_a_request_that_could_never_run_is_refused_at_once() -> None:
    engine = engine_of(kv_cache_tokens=64)
    with pytest.raises(RequestError) as raised:
        engine.submit(request_of(prompt=60, answer=5), lambda event: None)
    assert raised.value.code == "prompt_too_long"
    assert engine.idle
    engine.submit(request_of(prompt=60, answer=4), lambda event: None)
    run_dry(engine)


def test_an_error_inside_a_step_comes_out_of_turn() -> None:
    """The library's state is unknown after it, so its process ends; see test_process."""
    engine = engine_of()
    engine.submit(GenerationRequest((FAIL_TOKEN, 5), max_tokens=4), lambda event: None)
    with pytest.raises(RuntimeError, match="asked to"):
        engine.turn()


class RandomTraffic(RuleBasedStateMachine):
    """Any mix of submitting, cancelling and turning: each request ends once, and its tokens are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = engine_of(kv_cache_tokens=6 * 32, max_num_sequences=3)
        self.requests: dict[int, GenerationRequest] = {}
        self.events: dict[int, list[TokenEvent]] = {}
        self.cancelled: set[int] = set()

    @rule(prompt=st.integers(1, 100), answer=st.integers(1, 80), first=st.integers(10, 300))
    def submit(self, prompt: int, answer: int, first: int) -> None:
        request = request_of(prompt, answer, first)
        handle = self.engine.submit(request, lambda event: self.events[event.handle].append(event))
        self.requests[handle] = request
        self.events[handle] = []

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.requests)))
        self.engine.cancel(handle)
        self.cancelled.add(handle)

    @rule(turns=st.integers(1, 40))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.turn()

    @invariant()
    def budget_holds(self) -> None:
        stats = self.engine.stats()
        assert 0 <= stats.kv_blocks_reserved <= stats.kv_blocks
        assert stats.running <= 3
        open_requests = [events for events in self.events.values() if not events or events[-1].finish_reason is None]
        assert stats.running + stats.waiting == len(open_requests)

    @invariant()
    def order_of_arrival_holds(self) -> None:
        started = [bool(self.events[handle]) for handle in sorted(self.requests) if handle not in self.cancelled]
        assert started == sorted(started, reverse=True)

    def teardown(self) -> None:
        run_dry(self.engine)
        for handle, request in self.requests.items():
            events = self.events[handle]
            assert [event.finish_reason is not None for event in events] == [False] * (len(events) - 1) + [True]
            tokens = [token for event in events for token in event.token_ids]
            assert tokens == expected_answer(request)[: len(tokens)]
            if events[-1].finish_reason is FinishReason.CANCELLED:
                assert handle in self.cancelled
            else:
                assert len(tokens) == request.max_tokens
        assert self.engine.stats().kv_blocks_reserved == 0


RandomTraffic.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRandomTraffic = RandomTraffic.TestCase

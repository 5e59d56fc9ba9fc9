"""EngineMetrics over a real engine process: deaths, stalls, failing boards, and what each end counts for."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import (
    Beam,
    EngineLimits,
    EngineStats,
    FinishReason,
    GenerationRequest,
    RequestTimings,
    SamplingConfig,
    TokenEvent,
)
from inflight.runtime.metrics.definitions import (
    BATCHER,
    DURATION,
    ENGINE_FAMILIES,
    FIRST_TOKEN,
    GENERAL,
    INPUT_TOKENS,
    INTER_TOKEN_LATENCY,
    KV_BLOCKS,
    MEMORY,
    OUTPUT_TOKENS,
    QUEUE_TIME,
    REQUEST_ENDS,
    REQUESTS,
    TENANT_TOKENS,
    MetricFamily,
    NullSink,
)
from inflight.runtime.metrics.engine_metrics import MAX_TENANTS, EngineMetrics, TenantUsage, reason_of, state_values
from tests.fixtures.waiting import wait_until

SOON = 60.0
PERIOD = 0.02
DIE_TOKEN = 2
ENDLESS = 60_000


class MemorySink(NullSink):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.values: dict[tuple[MetricFamily, str], float] = {}
        self.sets = 0  # but for those of the memory, which grows as it pleases, and of what goes with any change
        self.closed = False
        self.counts: Counter[str] = Counter()
        self.observed: defaultdict[MetricFamily, list[float]] = defaultdict(list)

    def set(self, family: MetricFamily, member: str, value: float) -> None:
        self.sets += family not in (MEMORY, GENERAL)
        self.values[family, member] = value

    def add(self, family: MetricFamily, member: str, count: int) -> None:
        self.counts[member] += count

    def observe(self, family: MetricFamily, value: float, label_value: str = "") -> None:
        self.observed[family].append(value)

    def close(self) -> None:
        self.closed = True

    @property
    def quiet(self) -> bool:
        busy = [(REQUESTS, "active"), (REQUESTS, "scheduled"), (REQUESTS, "waiting"), (KV_BLOCKS, "used")]
        return bool(self.values) and not any(self.values[series] for series in busy)


class BrokenSink(NullSink):
    """Fails at whatever it is shown."""

    def set(self, family: MetricFamily, member: str, value: float) -> None:
        raise OSError("no board")

    def observe(self, family: MetricFamily, value: float, label_value: str = "") -> None:
        raise OSError("no board")


class MeasuredFakeEngine:
    """An engine process and its metrics; submits as the model does."""

    def __init__(self, board: MemorySink | BrokenSink, **extra: str) -> None:
        self.reports: list[str] = []
        extra = {"die_token": str(DIE_TOKEN), "max_seq_len": str(2 * ENDLESS), **extra}
        options = EngineOptions("fake", "/engines/demo", kv_cache_tokens=8 * ENDLESS, max_num_sequences=2, extra=extra)
        self.engine = EngineProcess(options, restart=True)
        self.metrics = EngineMetrics(self.engine, board, PERIOD, reuses_blocks=False, report=self.reports.append)

    def submit(self, max_tokens: int, first: int = 100, beam_width: int = 1) -> tuple[int, threading.Event]:
        """The handle of a request with a prompt of three tokens, and what is set at its end."""
        request = GenerationRequest((first, 101, 102), max_tokens, sampling=SamplingConfig(beam_width=beam_width))
        meter, ended = self.metrics.start_request(request), threading.Event()

        def on_event(event: TokenEvent) -> None:
            meter.observe(event)
            if event.finish_reason is not None:
                ended.set()

        return self.engine.submit(request, on_event), ended

    def run(self, max_tokens: int, first: int = 100, beam_width: int = 1) -> None:
        assert self.submit(max_tokens, first, beam_width)[1].wait(SOON)

    def close(self) -> None:
        self.metrics.close()
        self.engine.close()


@pytest.fixture
def board() -> MemorySink:
    return MemorySink()


@pytest.fixture
def measured(board: MemorySink) -> Iterator[MeasuredFakeEngine]:
    measured = MeasuredFakeEngine(board, step_seconds="0.005")
    yield measured
    assert not board.closed
    measured.close()
    assert board.closed


def test_a_request_is_observed_once_with_its_lengths_and_times(measured: MeasuredFakeEngine, board: MemorySink) -> None:
    measured.run(20)
    wait_until(lambda: board.counts["LENGTH"] == 1)
    assert board.observed[INPUT_TOKENS] == [3]
    assert board.observed[OUTPUT_TOKENS] == [20]
    (queued,), (first,), (whole,) = (board.observed[family] for family in (QUEUE_TIME, FIRST_TOKEN, DURATION))
    assert 0 <= queued < first < whole
    assert first >= 0.005
    assert whole >= 20 * 0.005
    assert board.observed[INTER_TOKEN_LATENCY]
    wait_until(lambda: (board.counts["prefill"], board.counts["decode"]) == (3, 20))


def test_an_engine_at_rest_is_not_shown_again(measured: MeasuredFakeEngine, board: MemorySink) -> None:
    measured.run(3)
    wait_until(lambda: board.quiet and board.counts["LENGTH"] == 1)

    def rests() -> bool:
        sets = board.sets
        time.sleep(20 * PERIOD)
        return board.sets == sets

    wait_until(rests, seconds=60)
    assert {family for family, _ in board.values} == {REQUESTS, MEMORY, KV_BLOCKS, BATCHER, GENERAL}


def test_a_request_that_gets_no_place_still_shows_how_long_it_waited(
    measured: MeasuredFakeEngine, board: MemorySink
) -> None:
    running = [measured.submit(ENDLESS) for _ in range(2)]
    waiting, ended = measured.submit(ENDLESS)
    wait_until(lambda: board.values.get((REQUESTS, "waiting")) == 1)
    measured.engine.cancel(waiting)
    assert ended.wait(SOON)
    wait_until(lambda: board.counts["CANCELED"] == 1)
    assert len(board.observed[QUEUE_TIME]) == len(board.observed[DURATION]) == 1
    assert board.observed[FIRST_TOKEN] == []
    for handle, _ in running:
        measured.engine.cancel(handle)
    wait_until(lambda: board.quiet and board.counts["CANCELED"] == 3)


def test_a_dead_engine_is_at_rest_and_the_next_one_starts_anew(measured: MeasuredFakeEngine, board: MemorySink) -> None:
    first_pid = measured.engine.pid
    measured.run(30)
    wait_until(lambda: board.values.get((GENERAL, "iteration_counter"), 0) >= 30)
    measured.submit(ENDLESS)
    wait_until(lambda: board.values[REQUESTS, "scheduled"] == 1)
    measured.run(5, first=DIE_TOKEN)
    wait_until(lambda: board.quiet and board.counts["ERROR"] == 2)
    wait_until(lambda: measured.engine.pid != first_pid and _answers(measured.engine))
    generated = board.counts["decode"]
    measured.run(4)
    wait_until(lambda: board.counts["LENGTH"] == 2 and board.quiet)
    assert board.counts["decode"] == generated + 4  # counters continue
    assert board.values[GENERAL, "iteration_counter"] <= 5
    wait_until(lambda: board.values[MEMORY, "cpu"] > 2**20)
    assert measured.reports == []


def _answers(engine: EngineProcess) -> bool:
    try:
        engine.stats()
    except RequestError:
        return False
    return True


def test_a_step_without_end_holds_up_the_gauges_and_nothing_else(
    measured: MeasuredFakeEngine, board: MemorySink
) -> None:
    handle, ended = measured.submit(ENDLESS)
    wait_until(lambda: board.values.get((REQUESTS, "scheduled")) == 1)
    os.kill(measured.engine.pid, signal.SIGSTOP)
    try:
        time.sleep(5 * PERIOD)
        measured.metrics.record_rejection()
        wait_until(lambda: board.counts["REJECTED"] == 1)
        assert board.values[REQUESTS, "scheduled"] == 1
    finally:
        os.kill(measured.engine.pid, signal.SIGCONT)
    measured.engine.cancel(handle)
    assert ended.wait(SOON)
    wait_until(lambda: board.quiet and board.counts["CANCELED"] == 1)


def test_a_board_that_fails_is_reported_once_and_harms_no_request() -> None:
    measured = MeasuredFakeEngine(BrokenSink())
    try:
        for _ in range(3):
            measured.run(50)
            time.sleep(3 * PERIOD)
        wait_until(lambda: measured.reports == ["metrics could not be published: OSError: no board"])
    finally:
        measured.close()


@pytest.mark.parametrize(
    ("reason", "code", "expected"),
    [
        (FinishReason.STOP, None, "STOP"),
        (FinishReason.LENGTH, None, "LENGTH"),
        (FinishReason.STOP_WORD, None, "STOP_WORD"),
        (FinishReason.CANCELLED, None, "CANCELED"),
        (FinishReason.DEADLINE, None, "DEADLINE"),
        (FinishReason.ERROR, "engine_died", "ERROR"),
        (FinishReason.ERROR, "overloaded", "REJECTED"),
        (FinishReason.ERROR, "invalid_parameter", "REJECTED"),
    ],
)
def test_each_end_has_its_reason(reason: FinishReason, code: str | None, expected: str) -> None:
    error = None if code is None else ("a sentence", code)
    assert reason_of(TokenEvent(1, (), reason, error=error)) == expected


def test_the_reasons_are_all_there_are() -> None:
    reasons = {reason_of(TokenEvent(1, (), reason)) for reason in FinishReason}
    assert set(REQUEST_ENDS.label_values) == reasons | {"ERROR"}


def test_state_values_of_a_busy_engine() -> None:
    limits = EngineLimits(vocabulary_size=10, max_seq_len=100, kv_block_tokens=32, kv_blocks=200, max_num_sequences=8)
    stats = EngineStats(
        waiting=3, running=5, kv_blocks_reserved=50, kv_blocks=200, steps=7, prefilling=2, prefilling_tokens=600
    )
    values = {(family.name, member): value for (family, member), value in state_values(stats, limits, 1, True).items()}
    requests, blocks, batch = (family.name for family in (REQUESTS, KV_BLOCKS, BATCHER))
    assert [values[requests, kind] for kind in REQUESTS.label_values] == [8, 8, 5, 2, 3]
    assert [values[blocks, kind] for kind in ("max", "free", "used", "tokens_per", "fraction")] == [
        200,
        150,
        50,
        32,
        0.25,
    ]
    assert math.isnan(values[blocks, "reused"])
    assert [values[batch, kind] for kind in BATCHER.label_values] == [600, 3, 0, 0]


def test_every_gauge_of_the_table_has_a_value() -> None:
    limits = EngineLimits(vocabulary_size=1, max_seq_len=1, kv_block_tokens=1, kv_blocks=0, max_num_sequences=1)
    stats = EngineStats(waiting=0, running=0, kv_blocks_reserved=0, kv_blocks=0, steps=0)
    values = state_values(stats, limits, 0, reuses_blocks=False)
    table = {(family, member) for family in ENGINE_FAMILIES if family.kind == "GAUGE" for member in family.label_values}
    assert set(values) == table - {(GENERAL, "timestamp")}


def test_a_meter_counts_what_came_before_the_end_too(board: MemorySink, measured: MeasuredFakeEngine) -> None:
    meter = measured.metrics.start_request(GenerationRequest((1, 2), 9))
    meter.observe(TokenEvent(1, (5, 6)))
    meter.observe(TokenEvent(1, (7,), FinishReason.STOP, RequestTimings(1, 2, 3, 4), beams=(Beam((1, 2)),)))
    wait_until(lambda: board.counts["STOP"] == 1)
    assert board.observed[OUTPUT_TOKENS] == [5]
    assert board.observed[DURATION] == [0]  # moments before its arrival, which can't be, don't go below zero
    now, second = time.monotonic_ns(), 10**9
    timings = RequestTimings(now, now + 10 * second, now + 20 * second, now + 40 * second)
    measured.metrics.start_request(GenerationRequest((1, 2), 9)).observe(
        TokenEvent(2, (), FinishReason.LENGTH, timings)
    )
    wait_until(lambda: board.counts["LENGTH"] == 1)
    told = [board.observed[family][-1] for family in (QUEUE_TIME, FIRST_TOKEN, DURATION)]
    assert told == pytest.approx([10, 20, 40], abs=2)


class RecordingSink(NullSink):
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add_to(self, family: MetricFamily, labels: Mapping[str, str], count: int) -> None:
        assert family is TENANT_TOKENS
        self.counts[labels["tenant"], labels["kind"]] += count


def test_tokens_are_counted_by_tenant() -> None:
    sink = RecordingSink()
    tokens = TenantUsage(sink)
    for tenant, count in (("a", 3), ("b", 5), ("a", 2), ("", 7)):
        tokens.count(tenant, 10, count)
    assert sink.counts == {("a", "input"): 20, ("a", "output"): 5, ("b", "input"): 10, ("b", "output"): 5}


def test_further_tenants_are_counted_together() -> None:
    sink = RecordingSink()
    tokens = TenantUsage(sink)
    for number in range(MAX_TENANTS + 50):
        tokens.count(f"tenant {number}", 1, 2)
    tokens.count("other", 1, 2)
    tokens.count("tenant 3", 1, 2)
    assert len(sink.counts) == 2 * (MAX_TENANTS + 1)
    assert sink.counts["other", "output"] == 2 * 51
    assert sink.counts["tenant 3", "input"] == 2

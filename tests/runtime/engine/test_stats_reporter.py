"""When an engine tells its status: while it works not too often, at rest at once."""

from __future__ import annotations

import pytest

from inflight.runtime.engine.fake import FakeModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.engine.worker import StatsReporter
from inflight.runtime.messages import GenerationRequest


@pytest.fixture
def engine() -> Scheduler:
    return Scheduler(FakeModelRunner(EngineOptions("fake", "/engines/demo", kv_cache_tokens=1024)))


def submit(engine: Scheduler, max_tokens: int) -> int:
    return engine.submit(GenerationRequest((1, 2), max_tokens), lambda event: None)


def test_a_working_engine_tells_once_in_a_period_and_at_once_when_it_rests(engine: Scheduler) -> None:
    pace = StatsReporter(engine, period_s=3600)
    submit(engine, 5)
    told = []
    for _ in range(5):
        engine.step()
        told.append(pace.due())
    first, *between, last = told
    assert first is not None
    assert first.running == 1
    assert between == [None, None, None]
    assert last is not None
    assert (last.running, last.kv_blocks_reserved, last.steps) == (0, 0, 5)


def test_without_a_period_every_turn_is_told(engine: Scheduler) -> None:
    pace = StatsReporter(engine, period_s=0)
    submit(engine, 5)
    steps = []
    for _ in range(5):
        engine.step()
        stats = pace.due()
        assert stats is not None
        steps.append(stats.steps)
    assert steps == [1, 2, 3, 4, 5]


def test_an_engine_at_rest_tells_nothing_twice(engine: Scheduler) -> None:
    pace = StatsReporter(engine, period_s=0)
    assert pace.due() is not None
    engine.step()
    assert pace.due() is None


def test_a_request_of_one_turn_is_told_too(engine: Scheduler) -> None:
    pace = StatsReporter(engine, period_s=3600)
    pace.due()
    submit(engine, 1)
    engine.step()
    stats = pace.due()
    assert stats is not None
    assert (stats.running, stats.steps) == (0, 1)

"""Scheduler over a library that goes on by itself, and was several steps ahead when it was looked after."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from inflight.runtime.engine.fake import FakeModelRunner
from inflight.runtime.engine.interface import EngineOptions, SelfSchedulingRunner, StepOutput
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import FinishReason, GenerationRequest
from tests.runtime.engine.fake_scheduler import EventCollector, run_dry

AHEAD = 4
"""Steps that are reported in one poll."""


class AheadRunner(FakeModelRunner):
    """Reports AHEAD steps at once, each by a separate progress."""

    def __init__(self) -> None:
        super().__init__(EngineOptions("fake", "", kv_cache_tokens=4096))
        self.arrivals = socket.socket()

    def step(self) -> Iterator[StepOutput]:
        told = [progress for _ in range(AHEAD) for progress in super(AheadRunner, self).step()]
        yield from told

    def remove(self, handle: int) -> None:
        self._running.pop(handle, None)  # the library may have ended it already

    def close(self) -> None:
        self.arrivals.close()


@pytest.fixture
def stepper() -> Iterator[AheadRunner]:
    stepper = AheadRunner()
    yield stepper
    stepper.close()


@pytest.mark.parametrize("max_tokens", [3, 50])
def test_what_is_told_behind_a_stop_word_is_none_of_the_answer(stepper: AheadRunner, max_tokens: int) -> None:
    assert isinstance(stepper, SelfSchedulingRunner)
    engine = Scheduler(stepper)
    stopped, other = EventCollector(), EventCollector()
    engine.submit(GenerationRequest((100, 101, 102), max_tokens, stop_ids=((100, 101),)), stopped)
    engine.submit(GenerationRequest((200, 201, 202), 6), other)
    run_dry(engine)
    assert (stopped.tokens, stopped.reason) == ([], FinishReason.STOP_WORD)
    assert (other.tokens, other.reason) == ([200, 201, 202] * 2, FinishReason.LENGTH)
    assert engine.stats().kv_blocks_reserved == 0

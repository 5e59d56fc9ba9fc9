"""The fake engine answers as it says it does, so that other tests can rely on it."""

from __future__ import annotations

import time

from inflight.runtime.engine import EngineOptions, Progress
from inflight.runtime.fake import FakeStepper, expected_token
from inflight.runtime.messages import FinishReason, GenerationRequest, Sampling


def stepper_of(**extra: str) -> FakeStepper:
    return FakeStepper(EngineOptions("fake", "", kv_cache_tokens=1000, extra=extra))


def test_the_answer_repeats_the_prompt() -> None:
    request = GenerationRequest((7, 8, 9), max_tokens=5)
    assert [expected_token(request, position) for position in range(5)] == [7, 8, 9, 7, 8]


def test_each_step_brings_a_token_to_each_request() -> None:
    stepper = stepper_of()
    stepper.add(1, GenerationRequest((7, 8), max_tokens=2))
    assert list(stepper.step()) == [Progress(1, (7,))]
    stepper.add(2, GenerationRequest((20, 21), max_tokens=9))
    assert list(stepper.step()) == [Progress(1, (8,), FinishReason.LENGTH), Progress(2, (20,))]
    assert list(stepper.step()) == [Progress(2, (21,))]
    stepper.remove(2)
    assert list(stepper.step()) == []


def test_min_tokens_lets_an_early_end_pass() -> None:
    stepper = stepper_of()
    stepper.add(1, GenerationRequest((7, 8), 9, end_ids=(8,), sampling=Sampling(min_tokens=2)))
    steps = [list(stepper.step()) for _ in range(4)]
    assert steps == [
        [Progress(1, (7,))],
        [Progress(1, (8,))],
        [Progress(1, (7,))],
        [Progress(1, (), FinishReason.STOP)],
    ]


def test_delays_are_what_was_asked_for() -> None:
    stepper = stepper_of(step_seconds="0.01", prefill_seconds_per_token="0.005")
    stepper.add(1, GenerationRequest((7,) * 10, max_tokens=2))
    started = time.monotonic()
    list(stepper.step())
    first = time.monotonic()
    list(stepper.step())
    assert first - started >= 0.06
    assert time.monotonic() - first >= 0.01


def test_limits_come_from_the_options() -> None:
    limits = stepper_of(vocabulary_size="99", max_sequence_length="77").limits
    assert (limits.vocabulary_size, limits.max_sequence_length) == (99, 77)
    assert (limits.kv_blocks, limits.kv_block_tokens) == (32, 32)

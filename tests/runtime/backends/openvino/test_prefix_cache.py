"""What is in the prefix cache is what was computed, whenever a request was cancelled."""

from __future__ import annotations

import random

import pytest

from inflight.runtime.engine.interface import EngineOptions, load_model_runner
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import FinishReason, GenerationRequest, SamplingConfig, TokenEvent
from tests.fixtures.engines import TinyEngine

Tokens = tuple[int, ...]


def engine_of(tiny_engine: TinyEngine, *, reuse: bool) -> Scheduler:
    options = EngineOptions("openvino", str(tiny_engine("llama")), 16384, kv_cache_reuse=reuse)
    return Scheduler(load_model_runner(options))


def submit(engine: Scheduler, prompt: Tokens, max_tokens: int, beam_width: int = 1) -> tuple[int, list[TokenEvent]]:
    events: list[TokenEvent] = []
    request = GenerationRequest(prompt, max_tokens, sampling=SamplingConfig(beam_width=beam_width), log_probs=True)
    return engine.submit(request, events.append), events


def drain(engine: Scheduler) -> None:
    while not engine.idle:
        engine.step()


def answer(engine: Scheduler, prompt: Tokens) -> tuple[list[int], list[float]]:
    _, events = submit(engine, prompt, 6)
    drain(engine)
    return [token for event in events for token in event.token_ids], [
        probability for event in events for probability in event.log_probs
    ]


@pytest.mark.parametrize("beam_width", [1, 2])
@pytest.mark.parametrize("turns", [2, *(pytest.param(turns, marks=pytest.mark.slow) for turns in (0, 1, 3, 5))])
def test_a_prompt_cancelled_in_the_middle_is_answered_rightly_later(
    tiny_engine: TinyEngine, turns: int, beam_width: int
) -> None:
    caching, fresh = engine_of(tiny_engine, reuse=True), engine_of(tiny_engine, reuse=False)
    source = random.Random(turns)
    for length in (100, 255, 256, 257, 300):
        prompt = tuple(source.randrange(3, 1500) for _ in range(length))
        beside, _ = submit(caching, prompt[:10], 200)
        handle, events = submit(caching, prompt, 20, beam_width)
        for _ in range(turns):
            caching.step()
        caching.cancel(handle)
        assert events[-1].finish_reason is FinishReason.CANCELLED  # at once, whatever the library still computes
        caching.cancel(beside)
        drain(caching)
        assert caching.stats().kv_blocks_reserved == 0
        (tokens, log_probs), (wanted, wanted_log_probs) = answer(caching, prompt), answer(fresh, prompt)
        assert log_probs == pytest.approx(wanted_log_probs, abs=0.01)
        assert tokens == wanted
        assert [event.finish_reason for event in events if event.finish_reason] == [FinishReason.CANCELLED]

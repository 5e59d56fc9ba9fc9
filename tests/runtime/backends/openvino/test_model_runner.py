"""The embedded engine on a tiny model: the tokens are right whatever runs beside, and every block comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import FinishReason, GenerationRequest, SamplingConfig, TokenEvent

PROMPT = tuple(range(10, 50))
Result = tuple[list[int], FinishReason]


@pytest.fixture(scope="module")
def options(tiny_engine: Callable[[str], Path]) -> EngineOptions:
    return EngineOptions(
        "openvino", str(tiny_engine("llama")), kv_cache_tokens=16 * 32, max_num_sequences=4, max_num_tokens=32
    )


@pytest.fixture(scope="module")
def engine(options: EngineOptions) -> Scheduler:
    return Scheduler(OpenVinoModelRunner(options))


def answers(engine: Scheduler, *requests: GenerationRequest) -> list[Result]:
    """All at once in, tokens and reasons out; a request that never ends fails the test."""
    events: dict[int, list[TokenEvent]] = {}
    handles = []
    for request in requests:
        handle = engine.submit(request, lambda event: events.setdefault(event.handle, []).append(event))
        handles.append(handle)
    for _ in range(5000):
        if engine.idle:
            break
        engine.step()
    results = []
    for handle in handles:
        reason = events[handle][-1].finish_reason
        assert reason is not None
        results.append(([token for event in events[handle] for token in event.token_ids], reason))
    return results


def test_one_token_a_step_and_first_of_all_the_prompt_in_parts(engine: Scheduler) -> None:
    """40 tokens take two steps of at most 32; a new prompt, so that no prefix of it is cached."""
    events: list[TokenEvent] = []
    engine.submit(GenerationRequest(tuple(range(500, 540)), 3), events.append)
    seen = []
    while not engine.idle:
        engine.step()
        seen.append(sum(len(event.token_ids) for event in events))
    assert seen == [0, 1, 2, 3]


def test_an_end_token_ends_the_answer_and_is_not_part_of_it(engine: Scheduler) -> None:
    ((tokens, _),) = answers(engine, GenerationRequest(PROMPT, 40))
    end = next(token for token in tokens[5:] if token not in tokens[:5])
    position = tokens.index(end)
    (ended,) = answers(engine, GenerationRequest(PROMPT, 40, end_ids=(1, end)))
    assert ended == (tokens[:position], FinishReason.STOP)


def test_min_tokens_holds_the_end_off(engine: Scheduler) -> None:
    ((tokens, _),) = answers(engine, GenerationRequest(PROMPT, 40))
    ends = tuple(tokens[:3])
    ((early, reason),) = answers(engine, GenerationRequest(PROMPT, 40, end_ids=ends))
    assert (early, reason) == ([], FinishReason.STOP)
    ((late, _),) = answers(engine, GenerationRequest(PROMPT, 40, end_ids=ends, sampling=SamplingConfig(min_tokens=9)))
    assert len(late) >= 9
    assert not set(late) & set(ends)


def test_min_tokens_above_max_tokens_is_the_whole_answer(engine: Scheduler) -> None:
    ((tokens, reason),) = answers(engine, GenerationRequest(PROMPT, 5, sampling=SamplingConfig(min_tokens=900)))
    assert (len(tokens), reason) == (5, FinishReason.LENGTH)


def test_the_cache_may_be_filled_to_the_last_block(engine: Scheduler) -> None:
    """Four requests of exactly four blocks fill sixteen; the rest wait, and no request is preempted."""
    requests = [GenerationRequest(tuple(range(600 + n, 664 + n)), 64) for n in range(12)]
    results = answers(engine, *requests)
    assert [(len(tokens), reason) for tokens, reason in results] == [(64, FinishReason.LENGTH)] * 12

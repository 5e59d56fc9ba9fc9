"""An engine over the fake stepper, turned by hand, and what it is expected to answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inflight.runtime.engine.fake import FakeModelRunner, expected_token
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.scheduler import Scheduler, no_tokenizer
from inflight.runtime.messages import FinishReason, GenerationRequest, TokenEvent
from inflight.text.detokenizer import Detokenizer

MAX_STEPS = 10_000
"""Turns in which everything has long ended."""
FAIL_TOKEN, REFUSE_TOKEN = 1, 2


def scheduler_of(
    kv_cache_tokens: int = 256,
    max_num_sequences: int = 4,
    max_queue_size: int = 0,
    load_detokenizer: Callable[[], Detokenizer] = no_tokenizer,
    stream_interval: int = 1,
    **extra: str,
) -> Scheduler:
    options = EngineOptions("fake", "", kv_cache_tokens=kv_cache_tokens, max_num_sequences=max_num_sequences)
    options.extra.update(extra, fail_token=str(FAIL_TOKEN), refuse_token=str(REFUSE_TOKEN))
    return Scheduler(FakeModelRunner(options), max_queue_size, load_detokenizer, stream_interval)


def request_of(prompt: int = 10, answer: int = 5, first: int = 100) -> GenerationRequest:
    return GenerationRequest(prompt_ids=tuple(range(first, first + prompt)), max_tokens=answer)


def run_dry(engine: Scheduler) -> None:
    for _ in range(MAX_STEPS):
        if engine.idle:
            return
        engine.step()
    pytest.fail("the engine never ran dry")


def expected_answer(request: GenerationRequest) -> list[int]:
    return [expected_token(request, position) for position in range(request.max_tokens)]


def keep_ends(ended: list[int]) -> Callable[[TokenEvent], None]:
    def on_event(event: TokenEvent) -> None:
        if event.finish_reason is not None:
            ended.append(event.handle)

    return on_event


def ignore_event(event: TokenEvent) -> None:
    """For requests whose answers do not matter."""


class EventCollector:
    """Collects one request's events."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []

    def __call__(self, event: TokenEvent) -> None:
        assert not self.ended, "something came after the end"
        self.events.append(event)

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1].finish_reason is not None

    @property
    def end(self) -> TokenEvent:
        assert self.ended
        return self.events[-1]

    @property
    def reason(self) -> FinishReason | None:
        return self.end.finish_reason

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]


def answered(engine: Scheduler, request: GenerationRequest) -> EventCollector:
    answer = EventCollector()
    engine.submit(request, answer)
    run_dry(engine)
    return answer

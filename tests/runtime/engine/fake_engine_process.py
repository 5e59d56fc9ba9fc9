"""What tests of EngineProcess share: requests to the fake engine, and what collects the answers."""

from __future__ import annotations

import threading

from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest, TokenEvent

FAIL_TOKEN, DIE_TOKEN = 1, 2
FAILURES = {"fail_token": str(FAIL_TOKEN), "die_token": str(DIE_TOKEN)}
SOON = 60.0
"""Seconds that anything here may take at most; a busy machine included."""
ENDLESS = 60_000
"""Tokens of an answer that no test sees the end of: at 2 ms a step it takes twice as long as SOON."""


class EventWaiter:
    """Collects one request's events."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.ended = threading.Event()

    def __call__(self, event: TokenEvent) -> None:
        self.events.append(event)
        if event.finish_reason is not None:
            self.ended.set()

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]

    def end(self) -> TokenEvent:
        assert self.ended.wait(SOON), "the request never ended"
        return self.events[-1]


def options_of(**extra: str) -> EngineOptions:
    extra = {**FAILURES, "max_seq_len": str(2 * ENDLESS), **extra}
    return EngineOptions("fake", "/engines/demo", kv_cache_tokens=20 * ENDLESS, extra=extra)


def request_of(max_tokens: int = 5, first: int = 100) -> GenerationRequest:
    return GenerationRequest((first, first + 1, first + 2), max_tokens)

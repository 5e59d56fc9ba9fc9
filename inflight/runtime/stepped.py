"""SteppedEngine: turns a step-driven library into an engine with in-flight batching."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from itertools import count

from inflight.runtime.engine import Progress, Stepper
from inflight.runtime.messages import (
    EngineLimits,
    EngineStats,
    EventSink,
    FinishReason,
    GenerationRequest,
    Timings,
    TokenEvent,
)


@dataclass
class _Entry:
    """A request on its way through the engine."""

    handle: int
    request: GenerationRequest
    on_event: EventSink
    timings: Timings


class SteppedEngine:
    """Admits, steps and cancels for a `Stepper`; whoever owns it calls `turn` while there is work.

    A request is admitted, in order of arrival, once the KV blocks of its worst case are free, so that the
    cache never runs out under a running request (TensorRT-LLM's `guaranteed_no_evict`). Not thread-safe: one
    thread submits, cancels and turns.
    """

    def __init__(self, stepper: Stepper) -> None:
        self.limits: EngineLimits = stepper.limits
        self._stepper = stepper
        self._handles = count(1)
        self._waiting: deque[_Entry] = deque()
        self._running: dict[int, _Entry] = {}
        self._kv_blocks_reserved = 0
        self._steps = 0

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def submit(self, request: GenerationRequest, on_event: EventSink, handle: int | None = None) -> int:
        """Queue a request; raises RequestError for one that could never run. `handle` may come from outside."""
        self.limits.check(request)
        handle = next(self._handles) if handle is None else handle
        self._waiting.append(_Entry(handle, request, on_event, Timings(arrival_ns=time.monotonic_ns())))
        return handle

    def cancel(self, handle: int) -> None:
        entry = self._running.get(handle)
        if entry is not None:
            self._stepper.remove(handle)
            self._end(entry, (), FinishReason.CANCELLED)
            return
        for entry in self._waiting:
            if entry.handle == handle:
                self._waiting.remove(entry)
                self._push(entry, (), FinishReason.CANCELLED)
                return

    def turn(self) -> None:
        """Admit what fits, take one step, and push the events of all requests that it moved."""
        self._admit()
        if not self._running:
            return
        self._steps += 1
        for progress in self._stepper.step():
            self._advance(progress)

    def stats(self) -> EngineStats:
        return EngineStats(
            waiting=len(self._waiting),
            running=len(self._running),
            kv_blocks_reserved=self._kv_blocks_reserved,
            kv_blocks=self.limits.kv_blocks,
            steps=self._steps,
        )

    def close(self) -> None:
        for handle in [*self._running, *(entry.handle for entry in self._waiting)]:
            self.cancel(handle)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.limits.max_num_sequences:
            entry = self._waiting[0]
            blocks = self.limits.kv_blocks_of(entry.request)
            if self._kv_blocks_reserved + blocks > self.limits.kv_blocks:
                return
            self._waiting.popleft()
            self._stepper.add(entry.handle, entry.request)
            entry.timings = replace(entry.timings, admitted_ns=time.monotonic_ns())
            self._running[entry.handle] = entry
            self._kv_blocks_reserved += blocks

    def _advance(self, progress: Progress) -> None:
        entry = self._running[progress.handle]
        if not entry.timings.first_token_ns:
            entry.timings = replace(entry.timings, first_token_ns=time.monotonic_ns())
        if progress.finish_reason is None:
            entry.on_event(TokenEvent(progress.handle, progress.token_ids))
        else:
            self._end(entry, progress.token_ids, progress.finish_reason)

    def _end(self, entry: _Entry, token_ids: tuple[int, ...], reason: FinishReason) -> None:
        del self._running[entry.handle]
        self._kv_blocks_reserved -= self.limits.kv_blocks_of(entry.request)
        self._push(entry, token_ids, reason)

    def _push(self, entry: _Entry, token_ids: tuple[int, ...], reason: FinishReason) -> None:
        timings = replace(entry.timings, end_ns=time.monotonic_ns())
        entry.on_event(TokenEvent(entry.handle, token_ids, reason, timings))

"""Metrics of an engine: gauges of its state, and counters and histograms of its requests."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.messages import (
    EngineLimits,
    EngineStats,
    FinishReason,
    GenerationRequest,
    RequestTimings,
    TokenEvent,
)
from inflight.runtime.metrics.definitions import (
    BATCHER,
    DURATION,
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
    STEP_TOKENS,
    TENANT_TOKENS,
    MetricFamily,
    MetricsSink,
)

MAX_TENANTS = 100
OTHER = "other"
"""The label of all further tenants: each tenant adds two series, and clients choose the names."""


class TenantUsage:
    """Counts the tokens of each tenant's requests."""

    def __init__(self, sink: MetricsSink) -> None:
        self._sink = sink
        self._known: set[str] = set()

    def count(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """Count an ended request; requests without a tenant are not counted."""
        if not tenant:
            return
        if tenant not in self._known and len(self._known) >= MAX_TENANTS:
            tenant = OTHER
        elif tenant != OTHER:
            self._known.add(tenant)
        for kind, count in (("input", input_tokens), ("output", output_tokens)):
            self._sink.add_to(TENANT_TOKENS, {"tenant": tenant, "kind": kind}, count)


STALE_NS = 60_000_000_000
"""An answer without events for this long is not followed any more."""

_NONE = object()
"""Marks a full sample: no stream is followed."""


class InterTokenLatency:
    """Follows one answer from one of its events to the next, then the answer of the next event.

    The events of one step come one after another, so running answers take turns, and one step adds at most one gap.
    `max_samples` limits the gaps between two calls of `drain`: no answer is followed while the sample is full. One
    thread calls `observe`, another `drain`.
    """

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples
        self._samples: deque[float] = deque()
        self._since_ns = 0
        self.tracked: object | None = None
        """The answer to follow; None means any. Other answers' events need not be passed to `observe`."""

    def observe(self, answer: object, tokens: int, ended: bool) -> None:
        """Record an event of `answer` with this many new tokens."""
        now = time.monotonic_ns()
        if self.tracked is None and not ended:
            self._since_ns = now
            self.tracked = answer
        elif self.tracked is answer:
            if tokens:
                self._samples.append((now - self._since_ns) / tokens / 1e9)
            self.tracked = _NONE if len(self._samples) >= self._max_samples else None

    def drain(self) -> list[float]:
        """Return the gaps since the last call, in seconds per token."""
        gaps = [self._samples.popleft() for _ in range(len(self._samples))]
        if self.tracked is _NONE or time.monotonic_ns() - self._since_ns > STALE_NS:
            self.tracked = None
        return gaps


MAX_SAMPLES_PER_SECOND = 20
"""Limit of observed inter-token latencies: one observation costs Triton about 20 microseconds."""

_MEMORY_PERIOD_S = 1.0
_MIN_MEMORY_CHANGE = 1 / 16
"""Smallest relative change of the memory that is published by itself."""
_END_REASONS = {
    FinishReason.STOP: "STOP",
    FinishReason.LENGTH: "LENGTH",
    FinishReason.STOP_WORD: "STOP_WORD",
    FinishReason.CANCELLED: "CANCELED",
    FinishReason.DEADLINE: "DEADLINE",
}
_ENGINE_ERROR_CODES = {"engine_died"}


class MeasuredEngine(Protocol):
    """The parts of an engine that metrics need."""

    limits: EngineLimits
    last_stats: EngineStats

    @property
    def pid(self) -> int: ...


class RequestEnd(NamedTuple):
    """How one request ended; `timings` is None if the engine never received it or crashed meanwhile."""

    reason: str
    prompt_tokens: int
    output_tokens: int
    arrival_ns: int
    timings: RequestTimings | None
    tenant: str = ""


class RequestMeter:
    """Counts the tokens of one request from its events; called for each token, so it is fast."""

    __slots__ = ("_arrival_ns", "_ends", "_latency", "_prompt_tokens", "_tenant", "output_tokens")

    def __init__(self, request: GenerationRequest, latency: InterTokenLatency, ends: deque[RequestEnd]) -> None:
        self._prompt_tokens = len(request.prompt_ids)
        self._tenant = request.metadata.tenant if request.metadata else ""
        self.output_tokens = 0
        """Tokens so far; with the last event, those of all beams."""
        self._arrival_ns = time.monotonic_ns()
        self._latency = latency
        self._ends = ends

    def observe(self, event: TokenEvent) -> None:
        tokens = len(event.token_ids)
        self.output_tokens += tokens
        ended = event.finish_reason is not None
        followed = self._latency.tracked
        if followed is None or followed is self:
            self._latency.observe(self, tokens, ended)
        if ended:
            self.output_tokens += sum(len(beam.token_ids) for beam in event.beams)
            counts = self._prompt_tokens, self.output_tokens
            self._ends.append(RequestEnd(reason_of(event), *counts, self._arrival_ns, event.timings, self._tenant))


class EngineMetrics:
    """Publishes an engine's state and its ended requests to a sink every `period_s`.

    Requests only append records; a separate thread publishes, so a slow or failing sink delays no request. Only gauges
    whose value changed are set. `reuses_blocks` says whether the engine caches prefixes.
    """

    def __init__(
        self,
        engine: MeasuredEngine,
        sink: MetricsSink,
        period_s: float,
        reuses_blocks: bool,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._period_s = period_s
        self._reuses_blocks = reuses_blocks
        self._latency = InterTokenLatency(max(1, round(MAX_SAMPLES_PER_SECOND * period_s)))
        self._ends: deque[RequestEnd] = deque()
        self._tenants = TenantUsage(sink)
        self._published: dict[tuple[MetricFamily, str], float] = {}
        self._last_state: tuple[EngineStats, int] | None = None
        self._step_tokens = {"prefill": 0, "decode": 0}
        self._memory = (0, 0.0, 0)
        """Process id, time of the measurement, and bytes."""
        self._thread = BackgroundLoop("engine-metrics", self._publish, "metrics could not be published", report)
        self._thread.start()

    def start_request(self, request: GenerationRequest) -> RequestMeter:
        """Record a request's arrival; the returned meter must get all of its events."""
        return RequestMeter(request, self._latency, self._ends)

    def record_rejection(self) -> None:
        """Record a request that was refused before it reached the engine."""
        self._ends.append(RequestEnd("REJECTED", 0, 0, 0, None))

    def close(self) -> None:
        self._thread.close()
        self._sink.close()

    def _publish(self) -> None:
        # The engine reports idle statistics after the request ends that led to them: read in this order, gauges at zero
        # mean that all ends are counted.
        stats, pid = self._engine.last_stats, self._engine.pid
        self._thread.attempt(self._publish_requests)
        self._thread.attempt(partial(self._publish_state, stats, pid))
        self._thread.pause(self._period_s)

    def _publish_state(self, stats: EngineStats, pid: int) -> None:
        memory = self._memory_used(pid)
        # A process grows while it loads, though its engine is as idle as before.
        at_rest = (stats, pid) == self._last_state
        if at_rest and abs(memory - self._published[MEMORY, "cpu"]) <= memory * _MIN_MEMORY_CHANGE:
            return
        values = state_values(stats, self._engine.limits, memory, self._reuses_blocks)
        changed = {series: value for series, value in values.items() if not _same(self._published.get(series), value)}
        if changed:
            changed[GENERAL, "timestamp"] = time.time_ns() // 1000
        for (family, member), value in changed.items():
            self._sink.set(family, member, value)
            self._published[family, member] = value
        for kind, tokens in (("prefill", stats.prefilled), ("decode", stats.generated)):
            before, self._step_tokens[kind] = self._step_tokens[kind], tokens
            if tokens != before:
                self._sink.add(STEP_TOKENS, kind, tokens - before if tokens > before else tokens)  # a new process
        self._last_state = stats, pid

    def _memory_used(self, pid: int) -> int:
        """Return the resident bytes of the engine's process, measured from time to time."""
        read_pid, read_at, used = self._memory
        now = time.monotonic()
        if pid != read_pid or now - read_at >= _MEMORY_PERIOD_S:
            used = _resident_bytes(pid)
            self._memory = pid, now, used
        return used

    def _publish_requests(self) -> None:
        reasons: Counter[str] = Counter()
        try:
            for _ in range(len(self._ends)):
                end = self._ends.popleft()
                reasons[end.reason] += 1
                self._observe(end)
        finally:
            for reason, count in reasons.items():
                self._sink.add(REQUEST_ENDS, reason, count)
        for gap in self._latency.drain():
            self._sink.observe(INTER_TOKEN_LATENCY, gap)

    def _observe(self, end: RequestEnd) -> None:
        if end.timings is None:
            return
        self._sink.observe(INPUT_TOKENS, end.prompt_tokens)
        self._sink.observe(OUTPUT_TOKENS, end.output_tokens)
        self._tenants.count(end.tenant, end.prompt_tokens, end.output_tokens)
        timings = end.timings
        self._sink.observe(QUEUE_TIME, _seconds(end.arrival_ns, timings.admitted_ns or timings.end_ns))
        self._sink.observe(DURATION, _seconds(end.arrival_ns, timings.end_ns))
        if timings.first_token_ns:
            self._sink.observe(FIRST_TOKEN, _seconds(end.arrival_ns, timings.first_token_ns))


def reason_of(event: TokenEvent) -> str:
    """Return the member of ENDS for a request's last event."""
    if event.finish_reason in _END_REASONS:
        return _END_REASONS[event.finish_reason]
    code = "" if event.error is None else event.error[1]
    return "ERROR" if code in _ENGINE_ERROR_CODES else "REJECTED"


def state_values(
    stats: EngineStats, limits: EngineLimits, resident_bytes: int, reuses_blocks: bool
) -> dict[tuple[MetricFamily, str], float]:
    """Return all gauges except the time, by family and member.

    The library does not report how many blocks it reused: the value is NaN, unless prefix caching is off.
    """
    used = stats.kv_blocks_reserved
    return {
        (REQUESTS, "active"): stats.waiting + stats.running,
        (REQUESTS, "max"): limits.max_num_sequences,
        (REQUESTS, "scheduled"): stats.running,
        (REQUESTS, "context"): stats.prefilling,
        (REQUESTS, "waiting"): stats.waiting,
        (MEMORY, "cpu"): resident_bytes,
        (MEMORY, "gpu"): 0,
        (MEMORY, "pinned"): 0,
        (KV_BLOCKS, "max"): stats.kv_blocks,
        (KV_BLOCKS, "free"): stats.kv_blocks - used,
        (KV_BLOCKS, "used"): used,
        (KV_BLOCKS, "tokens_per"): limits.kv_block_tokens,
        (KV_BLOCKS, "reused"): math.nan if reuses_blocks else 0,
        (KV_BLOCKS, "fraction"): used / stats.kv_blocks if stats.kv_blocks else 0,
        (BATCHER, "total_context_tokens"): stats.prefilling_tokens,
        (BATCHER, "generation_requests"): stats.running - stats.prefilling,
        (BATCHER, "micro_batch_id"): 0,
        (BATCHER, "paused_requests"): 0,
        (GENERAL, "iteration_counter"): stats.steps,
    }


def _same(shown: float | None, value: float) -> bool:
    return shown == value or (shown is not None and math.isnan(shown) and math.isnan(value))


def _seconds(start_ns: int, end_ns: int) -> float:
    return max(0, end_ns - start_ns) / 1e9


def _resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process; 0 for one that has exited."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0

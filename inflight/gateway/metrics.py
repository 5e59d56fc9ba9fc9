"""Metrics of the gateway itself; those of the engine are on Triton's page.

Several processes keep their numbers in files of a directory that `PROMETHEUS_MULTIPROC_DIR` names, and each page is
their sum. The numbers of processes that have ended still count, except for what was in flight.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from inflight.gateway.outcome import Outcome

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class _Ready(Collector):
    """Asks the process that writes the page: all of them watch the same servers."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("inflight_gateway_ready", "1 if a server is ready.", int(self._ready()))


class GatewayMetrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._page = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=registry)
        gauge = partial(Gauge, multiprocess_mode="livesum", registry=registry)
        self._requests = counter("inflight_gateway_requests", "Requests that ended.", ("route", "status", "tenant"))
        self._tokens = counter("inflight_gateway_tokens", "Tokens of answered requests.", ("tenant", "kind"))
        self._texts = counter(
            *("inflight_gateway_texts", "Texts, and blocks of audio, that encoders have computed.", ("tenant", "task"))
        )
        self._audio = counter("inflight_gateway_audio_seconds", "Seconds of transcribed audio.", ("tenant",))
        self._duration = histogram(
            "inflight_gateway_request_duration_seconds",
            "From a request's arrival to the end of its response.",
            ("route",),
        )
        self._first_token = histogram(
            "inflight_gateway_time_to_first_token_seconds", "From a request's arrival to its first token."
        )
        self.shadows = counter(
            "inflight_gateway_shadow_copies", "Copies of requests to shadow targets.", ("route", "result")
        )
        self.in_flight = gauge("inflight_gateway_answers_in_flight", "Answers in flight.")
        self.waiting = gauge("inflight_gateway_requests_waiting", "Requests that wait for a place.")
        self.rung = Gauge(
            *("inflight_gateway_rung", "How many rungs of a route's ladder hold, in any process.", ("route",)),
            multiprocess_mode="livemax",
            registry=registry,
        )
        self.degraded = counter(
            "inflight_gateway_degraded_requests", "Requests that a rung of a route's ladder changed.", ("route", "rung")
        )
        self._cache = counter(
            "inflight_gateway_cached_requests", "Requests to the response cache.", ("tenant", "result")
        )
        self.checks = counter(
            "inflight_gateway_checks", "What checks found, and verdicts that failed.", ("check", "at", "action")
        )
        self.texts_in_flight = gauge(
            "inflight_gateway_texts_in_flight", "Texts of open requests for encoders.", ("task",)
        )
        if os.environ.get(DIRECTORY_VARIABLE):
            self._page = CollectorRegistry()
            MultiProcessCollector(self._page)  # type: ignore[no-untyped-call]
        self._page.register(_Ready(ready))

    def record(self, route: str, status: int, tenant: str, seconds: float, began: float, outcome: Outcome) -> None:
        self._requests.labels(route, status, tenant).inc()
        self._duration.labels(route).observe(seconds)
        if outcome.first_token_at is not None:
            self._first_token.observe(outcome.first_token_at - began)
        if outcome.answered:
            self._tokens.labels(tenant, "input").inc(outcome.input_tokens)
            self._tokens.labels(tenant, "output").inc(outcome.output_tokens)
        if outcome.cache:
            self._cache.labels(tenant, outcome.cache).inc()
        if outcome.texts:
            self._texts.labels(tenant, outcome.task).inc(outcome.texts)
        if outcome.audio_seconds:
            self._audio.labels(tenant).inc(outcome.audio_seconds)

    def page(self) -> bytes:
        return generate_latest(self._page)

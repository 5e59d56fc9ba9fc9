"""Spans of requests to models, sent to an OpenTelemetry collector; never prompts and answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from inflight_client.results import ServerTimings

from inflight import __version__
from inflight.gateway.outcome import Outcome
from inflight.openai_api.encoding_request import PATHS

FLUSH_SECONDS = 3.0
"""How long the end of a process may wait for the collector."""

_SERVICE = "inflight-gateway"
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    **{path: "embeddings" if task == "embed" else task for task, paths in PATHS.items() for path in paths},
}


class Spans:
    """Exports in a thread of its own; spans are dropped if the collector does not keep up."""

    def __init__(self, endpoint: str) -> None:
        # The libraries are an extra, and take long to import.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.version": __version__, "process.pid": os.getpid()})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": _SERVICE}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")))
        self._tracer = self._provider.get_tracer("inflight.gateway", __version__)

    def begin(self, method: str, path: str, headers: Mapping[str, str], request_id: str) -> RequestSpan | None:
        """Return the span of a request to a model, whose parent is the caller's; None for other requests."""
        route = path.rstrip("/")
        if method != "POST" or route not in _OPERATIONS:
            return None
        return RequestSpan(self._tracer, route, headers, request_id)

    def close(self) -> None:
        """Send what is left, if the collector takes it in time."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)


class RequestSpan:
    """The span of one request."""

    def __init__(self, tracer: Any, route: str, headers: Mapping[str, str], request_id: str) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self._propagator = tracer, TraceContextTextMapPropagator()
        self._span = tracer.start_span(
            f"POST {route}",
            self._propagator.extract(headers, Context()),
            SpanKind.SERVER,
            {
                "http.request.method": "POST",
                "http.route": route,
                "gen_ai.operation.name": _OPERATIONS[route],
                "gen_ai.provider.name": "inflight",
                "inflight.request_id": request_id,
            },
        )

    @property
    def traceparent(self) -> str:
        """What names this span as the parent of the server's work; empty if there is no trace."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._context())
        return carrier.get("traceparent", "")

    @property
    def recording(self) -> bool:
        return bool(self._span.is_recording())

    def describe(self, model: str, max_tokens: int | None) -> None:
        self._span.set_attribute("gen_ai.request.model", model)
        if max_tokens is not None:
            self._span.set_attribute("gen_ai.request.max_tokens", max_tokens)

    def phases(self, choice: int, timings: ServerTimings) -> None:
        """Add the engine's times of a choice, whose last response has just arrived.

        The durations are the engine's. Its clock is not the gateway's, so they are placed to end now.
        """
        arrival = time.time_ns() - round(timings.last_token * 1e9)
        moments = (0.0, timings.first_scheduled, timings.first_token, timings.last_token)
        times = [arrival + round(seconds * 1e9) for seconds in moments]
        for name, start, end in zip(("queue", "prefill", "decode"), times, times[1:], strict=False):
            span = self._tracer.start_span(
                name, self._context(), attributes={"inflight.choice": choice}, start_time=start
            )
            span.end(end)

    def end(self, status: int, outcome: Outcome) -> None:
        from opentelemetry.trace import StatusCode

        span = self._span
        span.set_attribute("http.response.status_code", status)
        if outcome.error:
            span.set_attribute("error.type", outcome.error)
            if status >= 500 or status == 200:  # 200: a stream that failed
                span.set_status(StatusCode.ERROR)
        if outcome.finish_reasons:
            reasons = outcome.finish_reasons
            span.set_attribute("gen_ai.response.finish_reasons", [reasons[index] for index in sorted(reasons)])
        if outcome.input_tokens:
            span.set_attribute("gen_ai.usage.input_tokens", outcome.input_tokens)
            if outcome.task == "generate":
                span.set_attribute("gen_ai.usage.output_tokens", outcome.output_tokens)
        span.end()

    def _context(self) -> Any:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(self._span, Context())

"""The metrics of an engine's model and of encoders: their names, labels and buckets.

Names that begin with `nv_` are upstream's, so that one dashboard serves both deployments; the others are additions.
Source: `custom_metrics_reporter.cc` of triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class MetricKind(str, Enum):
    """Kinds of metrics, with the names of Triton's python backend."""

    GAUGE = "GAUGE"
    COUNTER = "COUNTER"
    HISTOGRAM = "HISTOGRAM"


@dataclass(frozen=True, eq=False)
class MetricFamily:
    """Series of one name, distinguished by the label `category`; a family without it is a single series.

    Every series also has the labels `model` and `version`. `buckets` are the upper bounds of a histogram. A family
    without label values has other labels, and creates a series on its first use.
    """

    name: str
    kind: MetricKind
    description: str
    label: str = ""
    label_values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()


class MetricsSink(Protocol):
    """Publishes metrics. `label_value` is one of the family's; exceptions are reported once and ignored."""

    def set(self, family: MetricFamily, label_value: str, value: float) -> None: ...

    def add(self, family: MetricFamily, label_value: str, count: int) -> None: ...

    def add_to(self, family: MetricFamily, labels: Mapping[str, str], count: int) -> None:
        """Add to the series with these labels of a family without label values."""

    def observe(self, family: MetricFamily, value: float, label_value: str = "") -> None:
        """Add a value to a histogram; without `label_value`, to its first series."""

    def close(self) -> None:
        """Remove all metrics."""


class NullSink:
    """Discards metrics."""

    def set(self, family: MetricFamily, label_value: str, value: float) -> None:
        pass

    def add(self, family: MetricFamily, label_value: str, count: int) -> None:
        pass

    def add_to(self, family: MetricFamily, labels: Mapping[str, str], count: int) -> None:
        pass

    def observe(self, family: MetricFamily, value: float, label_value: str = "") -> None:
        pass

    def close(self) -> None:
        pass


_TOKEN_BUCKETS = (10.0, 50.0, 100.0, 500.0, 1000.0)

REQUESTS = MetricFamily(
    "nv_trt_llm_request_metrics",
    MetricKind.GAUGE,
    "Requests in the engine",
    "request_type",
    ("active", "max", "scheduled", "context", "waiting"),
)
MEMORY = MetricFamily(
    "nv_trt_llm_runtime_memory_metrics",
    MetricKind.GAUGE,
    "Bytes of memory of the engine's process",
    "memory_type",
    ("cpu", "gpu", "pinned"),
)
KV_BLOCKS = MetricFamily(
    "nv_trt_llm_kv_cache_block_metrics",
    MetricKind.GAUGE,
    "Blocks of the paged KV cache",
    "kv_cache_block_type",
    ("max", "free", "used", "tokens_per", "reused", "fraction"),
)
DISAGGREGATED = MetricFamily(
    "nv_trt_llm_disaggregated_serving_metrics",
    MetricKind.COUNTER,
    "Requests handed from one engine to another",
    "disaggregated_serving_type",
    ("kv_cache_transfer_ms", "request_count"),
)
BATCHER = MetricFamily(
    "nv_trt_llm_inflight_batcher_metrics",
    MetricKind.GAUGE,
    "The running batch",
    "inflight_batcher_specific_metric",
    ("total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests"),
)
GENERAL = MetricFamily(
    "nv_trt_llm_general_metrics",
    MetricKind.GAUGE,
    "Time of the latest statistics (microseconds since 1970) and number of steps",
    "general_type",
    ("timestamp", "iteration_counter"),
)
STEP_TOKENS = MetricFamily(
    "inflight_step_tokens_total",
    MetricKind.COUNTER,
    "Tokens of all steps: computed of prompts, and generated",
    "kind",
    ("prefill", "decode"),
)
INPUT_TOKENS = MetricFamily(
    "nv_llm_input_token_len",
    MetricKind.HISTOGRAM,
    "Tokens of each prompt",
    "response_metric_type",
    ("total_input_tokens",),
    _TOKEN_BUCKETS,
)
OUTPUT_TOKENS = MetricFamily(
    "nv_llm_output_token_len",
    MetricKind.HISTOGRAM,
    "Tokens of each answer",
    "response_metric_type",
    ("total_output_tokens",),
    _TOKEN_BUCKETS,
)

FIRST_TOKEN = MetricFamily(
    "inflight_time_to_first_token_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's arrival to its first token",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
INTER_TOKEN_LATENCY = MetricFamily(
    "inflight_inter_token_latency_seconds",
    MetricKind.HISTOGRAM,
    "Time between two tokens of an answer; a sample",
    buckets=(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0),
)
QUEUE_TIME = MetricFamily(
    "inflight_queue_time_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's arrival to its admission, or to its end if it was not admitted",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
DURATION = MetricFamily(
    "inflight_request_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's arrival to its last token",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
REQUEST_ENDS = MetricFamily(
    "inflight_requests_total",
    MetricKind.COUNTER,
    "Requests that have ended, by reason",
    "reason",
    ("STOP", "LENGTH", "STOP_WORD", "CANCELED", "DEADLINE", "ERROR", "REJECTED"),
)

TENANT_TOKENS = MetricFamily(
    "inflight_tenant_tokens_total",
    MetricKind.COUNTER,
    "Tokens of requests that have ended, by tenant and kind (input, output)",
    label_values=(),
)

ENGINE_FAMILIES = (
    *(REQUESTS, MEMORY, KV_BLOCKS, DISAGGREGATED, BATCHER, GENERAL, STEP_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS),
    *(FIRST_TOKEN, INTER_TOKEN_LATENCY, QUEUE_TIME, DURATION, REQUEST_ENDS, TENANT_TOKENS),
)

ENCODER_TOKENS = MetricFamily(
    "inflight_encoder_tokens_total",
    MetricKind.COUNTER,
    "Tokens of computed micro-batches: of the texts, and with padding",
    "kind",
    ("real", "padded"),
)
ENCODER_TEXTS = MetricFamily(
    "inflight_encoder_texts_total", MetricKind.COUNTER, "Texts that have ended", "status", ("ok", "error", "cancelled")
)
ENCODER_REFUSED = MetricFamily(
    "inflight_encoder_refused_total",
    MetricKind.COUNTER,
    "Texts and requests that were refused before they were queued, by error code",
    "reason",
    (
        *("overloaded", "prompt_too_long", "empty_prompt", "invalid_text", "invalid_token_ids"),
        *("invalid_parameter", "invalid_request", "unsupported_input", "audio_too_long", "audio_damaged"),
    ),
)
ENCODER_WAITING = MetricFamily(
    "inflight_encoder_waiting_texts", MetricKind.GAUGE, "Texts that wait for a micro-batch, or are being tokenized"
)
ENCODER_BATCH_TEXTS = MetricFamily(
    "inflight_encoder_batch_texts",
    MetricKind.HISTOGRAM,
    "Texts of each micro-batch",
    buckets=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
)
ENCODER_BATCH_TOKENS = MetricFamily(
    "inflight_encoder_batch_tokens",
    MetricKind.HISTOGRAM,
    "Padded tokens of each micro-batch",
    buckets=(16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0),
)
ENCODER_BATCH_SECONDS = MetricFamily(
    "inflight_encoder_batch_seconds",
    MetricKind.HISTOGRAM,
    "Time of the forward pass of each micro-batch",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
ENCODER_QUEUE_TIME = MetricFamily(
    "inflight_encoder_queue_time_seconds",
    MetricKind.HISTOGRAM,
    "Longest time that a text of a micro-batch waited, by sign of the text's priority",
    "priority",
    ("low", "normal", "high"),
    (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)

ENCODER_FAMILIES = (
    *(ENCODER_TOKENS, ENCODER_TEXTS, ENCODER_REFUSED, ENCODER_WAITING),
    *(ENCODER_BATCH_TEXTS, ENCODER_BATCH_TOKENS, ENCODER_BATCH_SECONDS, ENCODER_QUEUE_TIME),
)

FAMILIES = (*ENGINE_FAMILIES, *ENCODER_FAMILIES)

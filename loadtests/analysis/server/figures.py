"""The server's own figures over the measured part of a run."""

from __future__ import annotations

from inflight_client.encoder_call import MODELS

from loadtests.analysis.columns import UNKNOWN, Columns
from loadtests.analysis.server.counters import ServerCounters
from loadtests.analysis.summary import CountComparison, EncoderSide, ServerSide
from loadtests.analysis.window import MeasurementWindow
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome

REQUEST_GAUGES = "nv_trt_llm_request_metrics"
KV_BLOCK_GAUGES = "nv_trt_llm_kv_cache_block_metrics"
ENDED_REQUESTS = "inflight_requests_total"
ENGINE = "tensorrt_llm"
"""The name of the engine's model on every deployment."""

_NOT_COMPARED = "its counts are not compared with the client's"


def server_side(run: ServerCounters, window: MeasurementWindow) -> ServerSide | None:
    """Return figures from the metrics of our deployments, of TensorRT-LLM's C++ backend, or of any Triton; None without
    any."""
    part = run.between(window.start, window.end)
    if not part.samples:
        return None
    scheduled = [value for _, value in part.gauge(REQUEST_GAUGES, request_type="scheduled") if value > 0]
    waiting = [value for _, value in part.gauge(REQUEST_GAUGES, request_type="waiting")]
    fractions = [value for _, value in part.gauge(KV_BLOCK_GAUGES, kv_cache_block_type="fraction")]
    return ServerSide(
        queue_seconds=_queue_seconds(part),
        ttft_seconds=_ttft_seconds(part),
        requests_per_batch=sum(scheduled) / len(scheduled) if scheduled else None,
        kv_use_peak=max(fractions, default=None),
        waiting_peak=max(waiting, default=None),
        rejected=_ended(part, "REJECTED"),
        cancelled=_ended(part, "CANCELED"),
        output_tokens=part.increase("nv_llm_output_token_len_sum"),
        executions=executions(part),
        notes=tuple(sample_notes(run)),
        itl_seconds=part.mean_of("inflight_inter_token_latency_seconds"),
    )


def _queue_seconds(part: ServerCounters) -> float | None:
    ours = part.mean_of("inflight_queue_time_seconds")
    if ours is not None:
        return ours
    waited = part.increase("nv_inference_queue_duration_us", model=ENGINE)
    served = part.increase("nv_inference_request_success", model=ENGINE)
    return waited / 1e6 / served if waited is not None and served else None


def _ttft_seconds(part: ServerCounters) -> float | None:
    ours = part.mean_of("inflight_time_to_first_token_seconds")
    if ours is not None:
        return ours
    theirs = part.mean_of("nv_inference_first_response_histogram_ms", model=ENGINE)
    return None if theirs is None else theirs / 1e3


def _ended(part: ServerCounters, reason: str) -> float | None:
    """Return the engine's count, or Triton's count for the engine's model."""
    ours = part.increase(ENDED_REQUESTS, reason=reason)
    return part.increase("nv_inference_request_failure", model=ENGINE, reason=reason) if ours is None else ours


def executions(part: ServerCounters) -> dict[str, float]:
    """Return the mean requests per execution of each model."""
    runs = part.by_label("nv_inference_exec_count", "model")
    requests = part.by_label("nv_inference_count", "model")
    return {model: requests[model] / count for model, count in runs.items() if count and model in requests}


def sample_notes(run: ServerCounters) -> list[str]:
    """Return notes about anomalies, and why the counts of both sides are not compared (see `reconcile`)."""
    notes = [
        f"the server was restarted at about second {moment:.0f}: its counters were reset and their counts since the "
        f"sample before are lost, so {_NOT_COMPARED}"
        for moment in run.restarts
    ]
    if run.samples and run.samples[0].moment != "before":
        notes.append(f"the server's metrics were not read before the run, so {_NOT_COMPARED}")
    if run.samples and run.samples[-1].moment != "after":
        notes.append(f"the server's metrics were not read after the run, so {_NOT_COMPARED}")
    return notes


WAITING_TEXTS = "inflight_encoder_waiting_texts"
_TOKENS = "inflight_encoder_tokens_total"
_TEXTS = "inflight_encoder_texts_total"


def model_label(plan: LoadPlan) -> dict[str, str]:
    """Return the label of the series of the plan's model."""
    return {"model": plan.model or ("" if plan.task == "generate" else MODELS[plan.task])}


def encoder_side(run: ServerCounters, window: MeasurementWindow, plan: LoadPlan) -> EncoderSide | None:
    """Return the figures of the encoder that the plan uses; None without metrics."""
    part, model = run.between(window.start, window.end), model_label(plan)
    if not part.samples:
        return None
    waiting = [value for _, value in part.gauge(WAITING_TEXTS, **model)]
    refused = part.by_label("inflight_encoder_refused_total", "reason", **model)
    return EncoderSide(
        queue_seconds=part.mean_of("inflight_encoder_queue_time_seconds", **model),
        real_tokens=part.increase(_TOKENS, kind="real", **model),
        padded_tokens=part.increase(_TOKENS, kind="padded", **model),
        texts_per_batch=part.mean_of("inflight_encoder_batch_texts", **model),
        tokens_per_batch=part.mean_of("inflight_encoder_batch_tokens", **model),
        waiting_peak=max(waiting, default=None),
        refused={reason: count for reason, count in refused.items() if count},
        executions=executions(part),
        notes=tuple(sample_notes(run)),
    )


def reconcile_texts(counters: ServerCounters, columns: Columns, plan: LoadPlan) -> tuple[CountComparison, ...]:
    """Compare texts and their tokens, as `reconcile` does for requests and generated tokens; nothing of audio, whose
    blocks only the server counts."""
    whole = counters.whole_run()
    if whole is None or plan.task == "transcribe":
        return ()
    model = model_label(plan)
    completed = columns.with_outcome(RequestOutcome.COMPLETED)
    others = int(columns.texts_asked[~completed].sum())
    unsure = f"; the other requests had {others} texts, some of which the server may have computed" if others else ""
    comparisons = []
    if (texts := whole.increase(_TEXTS, status="ok", **model)) is not None:
        client = int(columns.texts_asked[completed].sum())
        note = f"texts of completed requests{unsure}"
        comparisons.append(CountComparison("texts", client, round(texts), note, 0, others))
    if (tokens := whole.increase(_TOKENS, kind="real", **model)) is not None:
        client = int(columns.input_tokens[completed & (columns.input_tokens != UNKNOWN)].sum())
        note = f"tokens of their texts, special ones included{unsure}"
        comparisons.append(CountComparison("tokens", client, round(tokens), note, 0, None if others else 0))
    return tuple(comparisons)

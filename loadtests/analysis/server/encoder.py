"""An encoder's own figures over the measured part of a run, and its counts beside the client's."""

from __future__ import annotations

from loadtests.analysis.columns import UNKNOWN, Columns
from loadtests.analysis.server.counters import ServerCounters
from loadtests.analysis.server.figures import executions, sample_notes
from loadtests.analysis.summary import CountComparison, EncoderSide
from loadtests.analysis.window import MeasurementWindow
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome

WAITING_TEXTS = "inflight_encoder_waiting_texts"
_TOKENS = "inflight_encoder_tokens_total"
_TEXTS = "inflight_encoder_texts_total"


def model_label(plan: LoadPlan) -> dict[str, str]:
    """Return the label of the series of the plan's model."""
    return {"model": plan.model or ("embedding" if plan.task == "embed" else plan.task)}


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
    """Compare texts and their tokens, as `reconcile` does for requests and generated tokens."""
    whole = counters.whole_run()
    if whole is None:
        return ()
    model = model_label(plan)
    completed = columns.with_outcome(RequestOutcome.COMPLETED)
    others = int(columns.texts_asked[~completed].sum())
    unsure = f"; the other requests had {others} texts, some of which the server may have computed" if others else ""
    found = []
    if (texts := whole.increase(_TEXTS, status="ok", **model)) is not None:
        client = int(columns.texts_asked[completed].sum())
        note = f"texts of completed requests{unsure}"
        found.append(CountComparison("texts", client, round(texts), note, 0, others))
    if (tokens := whole.increase(_TOKENS, kind="real", **model)) is not None:
        client = int(columns.input_tokens[completed & (columns.input_tokens != UNKNOWN)].sum())
        note = f"tokens of their texts, special ones included{unsure}"
        found.append(CountComparison("tokens", client, round(tokens), note, 0, None if others else 0))
    return tuple(found)

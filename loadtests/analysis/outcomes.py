"""Counts how requests ended, and their requested and received tokens."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags, Floats, mean_value
from loadtests.analysis.summary import Requests, Texts, Tokens
from loadtests.analysis.window import MeasurementWindow
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.interface import RequestSpec, Session

_MAX_FIRST_REQUESTS = 1000
"""Number of sessions whose first requests are compared with the requested lengths."""


def count_requests(columns: Columns) -> Requests:
    """Count requests by outcome, and error codes, the most frequent first."""
    counts = {outcome.value: int(columns.with_outcome(outcome).sum()) for outcome in RequestOutcome}
    codes, firsts, numbers = np.unique(columns.code, return_index=True, return_counts=True)
    errors = sorted(
        (-int(number), columns.texts[code], columns.texts[columns.message[first]])
        for code, first, number in zip(codes, firsts, numbers, strict=True)
        if columns.texts[code]
    )
    empty = columns.with_outcome(RequestOutcome.COMPLETED) & (columns.received_tokens == 0) & (columns.texts_asked == 0)
    return Requests(
        due=len(columns),
        empty=int(empty.sum()),
        **counts,
        errors={code: -number for number, code, _ in errors},
        messages={code: message for _, code, message in errors},
    )


def count_tokens(measured_columns: Columns, run: Columns, window: MeasurementWindow, plan: LoadPlan) -> Tokens:
    """Count tokens: `measured_columns` has the requests due in the measured part, `run` all of them."""
    came = work_within(window, run)
    streamed = measured_columns.with_outcome(RequestOutcome.COMPLETED) & (measured_columns.responses > 0)
    responses = int(measured_columns.responses[streamed].sum())
    return Tokens(
        input=int(measured_columns.input_tokens[measured_columns.input_tokens != UNKNOWN].sum()),
        output=int(measured_columns.received_tokens.sum()),
        per_second=came / window.seconds if window.seconds else 0.0,
        per_response=float(measured_columns.received_tokens[streamed].sum() / responses) if responses else 0.0,
        input_per_request=mean_value(measured_columns.input_tokens[measured_columns.input_tokens != UNKNOWN]),
        **_first_inputs(measured_columns, plan),
    )


def count_texts(measured_columns: Columns, run: Columns, window: MeasurementWindow) -> Texts:
    """Count the texts of an encoder and their input tokens, as `count_tokens` does for generated ones."""
    completed = measured_columns.with_outcome(RequestOutcome.COMPLETED)
    texts = int(measured_columns.texts_asked[completed].sum())
    tokens = _known_inputs(measured_columns, completed)
    in_time = run.with_outcome(RequestOutcome.COMPLETED) & window.contains(run.ended)
    seconds = window.seconds
    return Texts(
        texts=texts,
        tokens=tokens,
        per_second=float(run.texts_asked[in_time].sum() / seconds) if seconds else 0.0,
        tokens_per_second=_known_inputs(run, in_time) / seconds if seconds else 0.0,
        per_request=mean_value(measured_columns.texts_asked),
        tokens_per_text=tokens / texts if texts else None,
        **_audio(measured_columns, run, in_time, seconds),
    )


def _audio(measured: Columns, run: Columns, in_time: Flags, seconds: float) -> dict[str, float]:
    """Return the figures of audio; none without any."""
    heard = measured.audio_seconds > 0
    if not heard.any():
        return {}
    return {
        "audio_seconds": float(measured.audio_seconds.sum()),
        "audio_per_second": float(run.audio_seconds[in_time].sum() / seconds) if seconds else 0.0,
        "real_time_factor": float(((measured.ended - measured.due)[heard] / measured.audio_seconds[heard]).mean()),
    }


def _known_inputs(columns: Columns, counted: Flags) -> int:
    """Return the input tokens of the flagged requests whose server reported them."""
    return int(columns.input_tokens[counted & (columns.input_tokens != UNKNOWN)].sum())


def _first_inputs(part: Columns, plan: LoadPlan) -> dict[str, float | None]:
    """Return the requested and the sent length of the first requests of some sessions; a word counts as a token."""
    spec = plan.workload
    first = np.flatnonzero((part.turn == 0) & (part.input_tokens != UNKNOWN))[:_MAX_FIRST_REQUESTS]
    if spec.prompts is not None or not len(first):
        return {}
    in_words = spec.model_copy(update={"tokenizer": None, "tokens_per_word": 1.0})
    try:
        workload = make_workload(in_words, load_files(in_words), plan.seed)
    except LoadError:
        return {}
    requested = [_words(workload.session(int(number))) for number in part.session[first]]
    return {
        "first_input": mean_value(part.input_tokens[first]),
        "first_input_requested": mean_value(np.array(requested)),
    }


def _words(session: Session | None) -> int:
    request = None if session is None else next(session.requests())
    prompt = request.prompt if isinstance(request, RequestSpec) else ""
    texts = [prompt] if isinstance(prompt, str) else [str(message["content"]) for message in prompt]
    return sum(len(text.split()) for text in texts)


def work_within(window: MeasurementWindow, columns: Columns, counted: Flags | None = None) -> float:
    """Return the output tokens, or the texts of an encoder, that arrived in the measured part, of all requests or of
    those flagged by `counted`."""
    moments, weights = work_moments(columns, counted)
    return float(weights[window.contains(moments)].sum())


def work_moments(columns: Columns, counted: Flags | None = None) -> tuple[Floats, Floats]:
    """Return when tokens arrived, and how many: each response counts for its request's tokens per response; a unary
    answer arrives at its end. Of an encoder, the texts of completed requests arrive at their end."""
    if columns.texts_asked.any():
        done = columns.with_outcome(RequestOutcome.COMPLETED)
        done = done if counted is None else done & counted
        return columns.ended[done], columns.texts_asked[done].astype(float)
    tokens = columns.received_tokens if counted is None else np.where(counted, columns.received_tokens, 0)
    each = tokens / np.maximum(columns.responses, 1)
    whole = (columns.responses == 0) & (tokens > 0)
    moments = np.concatenate((columns.chunks, columns.ended[whole]))
    weights = np.concatenate((np.repeat(each, columns.responses), tokens[whole]))
    return moments, weights

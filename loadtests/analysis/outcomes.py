"""Counts how requests ended, and their requested and received tokens."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags, Floats, Ints
from loadtests.analysis.summary import Requests, Tokens
from loadtests.analysis.window import MeasurementWindow
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.interface import Session

_MAX_FIRST_REQUESTS = 1000
"""Number of sessions whose first requests are compared with the requested lengths."""


def count_requests(columns: Columns) -> Requests:
    """Count requests by outcome, and error codes, the most frequent first."""
    counts = {outcome.value: int(columns.with_outcome(outcome).sum()) for outcome in RequestOutcome}
    codes, firsts, numbers = np.unique(columns.code, return_index=True, return_counts=True)
    found = sorted(
        (-int(number), columns.texts[code], columns.texts[columns.message[first]])
        for code, first, number in zip(codes, firsts, numbers, strict=True)
        if columns.texts[code]
    )
    return Requests(
        due=len(columns),
        **counts,
        errors={code: -number for number, code, _ in found},
        messages={code: message for _, code, message in found},
    )


def count_tokens(measured_columns: Columns, run: Columns, window: MeasurementWindow, plan: LoadPlan) -> Tokens:
    """Count tokens: `measured_columns` has the requests due in the measured part, `run` all of them."""
    came = tokens_within(window, run)
    streamed = measured_columns.with_outcome(RequestOutcome.COMPLETED) & (measured_columns.responses > 0)
    responses = int(measured_columns.responses[streamed].sum())
    return Tokens(
        input=int(measured_columns.input_tokens[measured_columns.input_tokens != UNKNOWN].sum()),
        output=int(measured_columns.received_tokens.sum()),
        per_second=came / window.seconds if window.seconds else 0.0,
        per_response=float(measured_columns.received_tokens[streamed].sum() / responses) if responses else 0.0,
        input_per_request=_mean(measured_columns.input_tokens[measured_columns.input_tokens != UNKNOWN]),
        **_first_inputs(measured_columns, plan),
    )


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
    return {"first_input": _mean(part.input_tokens[first]), "first_input_requested": _mean(np.array(requested))}


def _words(session: Session | None) -> int:
    prompt = "" if session is None else next(session.requests()).prompt
    texts = [prompt] if isinstance(prompt, str) else [str(message["content"]) for message in prompt]
    return sum(len(text.split()) for text in texts)


def _mean(values: Ints) -> float | None:
    return float(values.mean()) if len(values) else None


def tokens_within(window: MeasurementWindow, columns: Columns, counted: Flags | None = None) -> float:
    """Return the output tokens that arrived in the measured part, of all requests or of those flagged by `counted`."""
    moments, weights = token_moments(columns, counted)
    return float(weights[window.contains(moments)].sum())


def token_moments(columns: Columns, counted: Flags | None = None) -> tuple[Floats, Floats]:
    """Return when tokens arrived, and how many: each response counts for its request's tokens per response; a unary
    answer arrives at its end."""
    tokens = columns.received_tokens if counted is None else np.where(counted, columns.received_tokens, 0)
    each = tokens / np.maximum(columns.responses, 1)
    whole = (columns.responses == 0) & (tokens > 0)
    moments = np.concatenate((columns.chunks, columns.ended[whole]))
    weights = np.concatenate((np.repeat(each, columns.responses), tokens[whole]))
    return moments, weights

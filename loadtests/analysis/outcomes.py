"""How requests ended, and the tokens that they asked for and got."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags, Floats
from loadtests.analysis.measured import Measured
from loadtests.analysis.summary import Requests, Tokens
from loadtests.record import Outcome


def count_requests(columns: Columns) -> Requests:
    """By what became of them; error codes with the most frequent first."""
    counts = {outcome.value: int(columns.of(outcome).sum()) for outcome in Outcome}
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


def count_tokens(part: Columns, run: Columns, measured: Measured) -> Tokens:
    """`part` has the requests due in the measured part, `run` all of the run's."""
    came = tokens_within(measured, run)
    streamed = part.of(Outcome.COMPLETED) & (part.responses > 0)
    responses = int(part.responses[streamed].sum())
    return Tokens(
        input=int(part.input_tokens[part.input_tokens != UNKNOWN].sum()),
        output=int(part.seen_tokens.sum()),
        per_second=came / measured.seconds if measured.seconds else 0.0,
        per_response=float(part.seen_tokens[streamed].sum() / responses) if responses else 0.0,
    )


def tokens_within(measured: Measured, columns: Columns, counted: Flags | None = None) -> float:
    """Output tokens that came in the measured part, of all requests or of those that are counted (flags)."""
    moments, weights = token_moments(columns, counted)
    return float(weights[measured.has(moments)].sum())


def token_moments(columns: Columns, counted: Flags | None = None) -> tuple[Floats, Floats]:
    """When tokens came, and how many: a response stands for its request's tokens per response, a whole answer comes
    at its end."""
    tokens = columns.seen_tokens if counted is None else np.where(counted, columns.seen_tokens, 0)
    each = tokens / np.maximum(columns.responses, 1)
    whole = (columns.responses == 0) & (tokens > 0)
    moments = np.concatenate((columns.chunks, columns.ended[whole]))
    weights = np.concatenate((np.repeat(each, columns.responses), tokens[whole]))
    return moments, weights

"""Computes the cost of a million tokens."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags
from loadtests.analysis.outcomes import tokens_within
from loadtests.analysis.summary import Cost
from loadtests.analysis.window import MeasurementWindow
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome


def cost(plan: LoadPlan, run: Columns, good: Flags | None, measured: MeasurementWindow) -> Cost | None:
    """Return the price of the measured part divided by its tokens of completed requests; None without a price.

    Tokens of failed requests are paid for but not counted, so errors raise the cost per token. Input tokens count at
    the end of their request. `run` has all requests: those of the warm-up may end in the measured part, as others end
    after it.
    """
    if plan.price_per_hour is None:
        return None
    spent = plan.price_per_hour * measured.seconds / 3600
    completed = run.with_outcome(RequestOutcome.COMPLETED)
    ended = completed & measured.contains(run.ended)
    known = bool(np.all(run.input_tokens[ended] != UNKNOWN))
    output = tokens_within(measured, run, completed)
    return Cost(
        currency=plan.currency,
        price_per_hour=plan.price_per_hour,
        per_million_output=_per_million(spent, output),
        # If the server does not count input tokens, the total is unknown.
        per_million_total=_per_million(spent, output + float(run.input_tokens[ended].sum())) if known else None,
        per_million_good_output=None if good is None else _per_million(spent, tokens_within(measured, run, good)),
    )


def _per_million(spent: float, tokens: float) -> float | None:
    return spent / tokens * 1e6 if tokens else None

"""Computes the cost of a million tokens or texts."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags
from loadtests.analysis.outcomes import work_within
from loadtests.analysis.summary import Cost, TextCost
from loadtests.analysis.window import MeasurementWindow
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome


def cost(plan: LoadPlan, run: Columns, good: Flags | None, measured: MeasurementWindow) -> Cost | TextCost | None:
    """Return the price of the measured part divided by its tokens or texts of completed requests; None without a
    price.

    Tokens of failed requests are paid for but not counted, so errors raise the cost per token. Input tokens count at
    the end of their request. `run` has all requests: those of the warm-up may end in the measured part, as others end
    after it.
    """
    if plan.price_per_hour is None:
        return None
    spent = plan.price_per_hour * measured.seconds / 3600
    completed = run.with_outcome(RequestOutcome.COMPLETED)
    ended = completed & measured.contains(run.ended)
    inputs = float(run.input_tokens[ended & (run.input_tokens != UNKNOWN)].sum())
    if plan.encodes:
        return TextCost(
            currency=plan.currency,
            price_per_hour=plan.price_per_hour,
            per_million_texts=_per_million(spent, work_within(measured, run, completed)),
            per_million_tokens=_per_million(spent, inputs),
            per_million_good_texts=None if good is None else _per_million(spent, work_within(measured, run, good)),
        )
    known = bool(np.all(run.input_tokens[ended] != UNKNOWN))
    output = work_within(measured, run, completed)
    return Cost(
        currency=plan.currency,
        price_per_hour=plan.price_per_hour,
        per_million_output=_per_million(spent, output),
        # If the server does not count input tokens, the total is unknown.
        per_million_total=_per_million(spent, output + inputs) if known else None,
        per_million_good_output=None if good is None else _per_million(spent, work_within(measured, run, good)),
    )


def _per_million(spent: float, number: float) -> float | None:
    return spent / number * 1e6 if number else None

"""What a million tokens cost."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags
from loadtests.analysis.outcomes import tokens_within
from loadtests.analysis.summary import Cost
from loadtests.analysis.window import MeasurementWindow
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome


def cost(plan: LoadPlan, run: Columns, good: Flags | None, measured: MeasurementWindow) -> Cost | None:
    """The price of the measured part, by the tokens that came in it of requests that were completed; None without one.

    What was made for others and thrown away is paid all the same, so errors make tokens dearer. Input tokens count with
    the end of their request. `run` has all requests, for those of the warm-up end in the measured part as others end
    behind it.
    """
    if plan.price_per_hour is None:
        return None
    spent = plan.price_per_hour * measured.seconds / 3600
    completed = run.with_outcome(RequestOutcome.COMPLETED)
    ended = completed & measured.contains(run.ended)
    told = bool(np.all(run.input_tokens[ended] != UNKNOWN))
    output = tokens_within(measured, run, completed)
    return Cost(
        currency=plan.currency,
        price_per_hour=plan.price_per_hour,
        per_million_output=_per_million(spent, output),
        # Where the server counts no input tokens, nobody knows what both together are.
        per_million_total=_per_million(spent, output + float(run.input_tokens[ended].sum())) if told else None,
        per_million_good_output=None if good is None else _per_million(spent, tokens_within(measured, run, good)),
    )


def _per_million(spent: float, tokens: float) -> float | None:
    return spent / tokens * 1e6 if tokens else None

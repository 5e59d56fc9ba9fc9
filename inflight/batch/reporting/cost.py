"""The cost of a job: the price per hour of its machines times the total time of its runs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from inflight.batch.job.counts import Counts

COST_FORMULA = "price_per_hour * seconds / 3600"


class JobCost(BaseModel):
    """In the currency of `price_per_hour`. A cost per unit is None if there are no units.

    `per_row` is per answered row; `per_million_tokens` counts prompts and answers together.
    """

    model_config = ConfigDict(frozen=True)

    price_per_hour: float
    spent: float
    per_row: float | None = None
    per_million_tokens: float | None = None
    per_million_output_tokens: float | None = None

    @classmethod
    def from_counts(cls, counts: Counts, price_per_hour: float | None) -> JobCost | None:
        """Return the cost of all runs of a job until now; None without a price."""
        if price_per_hour is None:
            return None
        spent = price_per_hour * counts.seconds / 3600
        return cls(
            price_per_hour=price_per_hour,
            spent=spent,
            per_row=_each(spent, counts.ok),
            per_million_tokens=_each(spent * 1e6, counts.input_tokens + counts.output_tokens),
            per_million_output_tokens=_each(spent * 1e6, counts.output_tokens),
        )


def _each(spent: float, many: int) -> float | None:
    return spent / many if many else None

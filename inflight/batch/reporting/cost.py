"""The cost of a job: the price per hour of its machines for the total time of its runs, and the price of its tokens."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from inflight.batch.job.counts import Counts
from inflight.batch.job.spec import RunOptions

COST_FORMULA = (
    "price_per_hour * seconds / 3600"
    " + price_per_million_{input,output} * ({input,output}_tokens - refine_{input,output}_tokens) / 1e6"
    " + refine_price_per_million_{input,output} * refine_{input,output}_tokens / 1e6"
)


class JobCost(BaseModel):
    """In the currency of the prices; `for_tokens` is the part of `spent` that was paid by the token, for both models of
    a job with --refine-with. A cost per unit is None if there are no units.

    `per_row` is per answered row; `per_million_tokens` counts prompts and answers together.
    """

    model_config = ConfigDict(frozen=True)

    price_per_hour: float | None = None
    price_per_million_input: float | None = None
    price_per_million_output: float | None = None
    refine_price_per_million_input: float | None = None
    refine_price_per_million_output: float | None = None
    spent: float
    for_tokens: float = 0.0
    per_row: float | None = None
    per_million_tokens: float | None = None
    per_million_output_tokens: float | None = None

    @classmethod
    def from_counts(cls, counts: Counts, options: RunOptions) -> JobCost | None:
        """Return the cost of all runs of a job until now; None without a price."""
        prices = (options.price_per_million_input, options.price_per_million_output)
        refining = (options.refine_price_per_million_input, options.refine_price_per_million_output)
        if all(price is None for price in (options.price_per_hour, *prices, *refining)):
            return None
        refining = (
            prices[0] if refining[0] is None else refining[0],
            prices[1] if refining[1] is None else refining[1],
        )
        tokens = (counts.input_tokens, counts.output_tokens)
        refined = (counts.refine_input_tokens, counts.refine_output_tokens)
        for_tokens = 0.0
        for price, other, all_tokens, large in zip(prices, refining, tokens, refined, strict=True):
            for_tokens += ((price or 0.0) * (all_tokens - large) + (other or 0.0) * large) / 1e6
        spent = (options.price_per_hour or 0.0) * counts.seconds / 3600 + for_tokens
        return cls(
            price_per_hour=options.price_per_hour,
            price_per_million_input=prices[0],
            price_per_million_output=prices[1],
            refine_price_per_million_input=refining[0],
            refine_price_per_million_output=refining[1],
            spent=spent,
            for_tokens=for_tokens,
            per_row=_each(spent, counts.ok),
            per_million_tokens=_each(spent * 1e6, counts.input_tokens + counts.output_tokens),
            per_million_output_tokens=_each(spent * 1e6, counts.output_tokens),
        )


def _each(spent: float, many: int) -> float | None:
    return spent / many if many else None

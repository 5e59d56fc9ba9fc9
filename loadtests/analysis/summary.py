"""The figures of a run: what `report.json` holds, and what reports, sweeps and comparisons read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DistributionSummary:
    """How one quantity was spread, in its unit (seconds for times). Percentiles are linear between order statistics."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True)
class Requests:
    """Requests due in the measured part, by what became of them. `errors` counts their codes."""

    due: int
    completed: int
    cancelled: int
    rejected: int
    timed_out: int
    failed: int
    unfinished: int
    errors: Mapping[str, int] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    """One sentence for each code, of the first that had it."""

    @property
    def not_cancelled(self) -> int:
        """Those whose client did not leave as planned: what shares of good and bad requests are of."""
        return self.due - self.cancelled

    @property
    def error_rate(self) -> float:
        """Rejected, late, failed and unfinished ones, of all whose client stayed; 0 where there was none."""
        bad = self.rejected + self.timed_out + self.failed + self.unfinished
        return bad / self.not_cancelled if self.not_cancelled else 0.0


@dataclass(frozen=True)
class Tokens:
    """`input`, `output`: of the requests due in the measured part. `per_second`: output tokens (responses with tokens,
    weighted by their request's tokens per response) that came in the measured part, whoever asked for them."""

    input: int
    output: int
    per_second: float
    per_response: float
    """Above 1 a response carries several tokens, and the gap between responses is not the gap between tokens."""
    input_per_request: float | None = None
    """Mean over the requests of which the server told it; None where it did of none."""
    first_input: float | None = None
    first_input_requested: float | None = None
    """The mean of sessions' first requests, and what the workload asked for in these; None where prompts are not made
    to a length, or the files that it is made of are not there any more."""


@dataclass(frozen=True)
class SloResult:
    """One bound of the SLO, such as `p99 ttft <= 500ms`: what it says, what was found, whether it was met.

    `found` and `limit` are seconds, or of `error_rate` a share of 1. In percentiles and maxima of all but ITL a request
    that stayed and never got there counts as infinitely late; see `slo.Slo`. (`latencies` are of what was
    measured.) `found` is None where it is infinite or nothing was measured, and the bound is then not kept. `samples`
    are the requests that count, or of ITL their gaps. `note` says how many were lost where that matters, and where
    there were too few requests to be sure; see `slo.needed`.
    """

    text: str
    value: float | None
    limit: float
    met: bool
    samples: int = 0
    note: str = ""
    evaluated: bool = True
    """False where tokens came in bunches and the verdict hangs on that; then it counts as not kept."""

    @property
    def verdict(self) -> str:
        return "met" if self.met else "missed" if self.evaluated else "not evaluated"


@dataclass(frozen=True)
class Goodput:
    """Requests that were good on their own: completed, and each of their latencies within the SLO's limits.

    A request's TTFT, TPOT and end-to-end time are its own; its ITL is the mean of its gaps, as AIPerf has it (one gap
    in a hundred may be longer where the SLO is of the 99th percentile). Where the SLO bounds one quantity
    twice (`p50 ttft <= 200ms`, `p99 ttft <= 1s`), the wider limit judges: the narrower is for half of the requests.
    """

    good: int
    per_second: float
    of_sent: float
    """Of all that were due, rejected, late and failed ones among them; not those whose client left as planned."""
    of_completed: float


@dataclass(frozen=True)
class ServerSide:
    """The server's own figures over the measured part; None where its metrics page has none of that.

    Differences of counters are between the samples nearest to the part's ends, gauges are of all samples between.
    """

    queue_seconds: float | None
    """Mean time in the queue, of the engine where it tells, else of Triton."""
    ttft_seconds: float | None
    requests_per_batch: float | None
    """Mean of requests with a place in the batch, over the samples in which there was one."""
    kv_use_peak: float | None
    """From 0 to 1."""
    waiting_peak: float | None
    rejected: float | None
    cancelled: float | None
    output_tokens: float | None
    executions: Mapping[str, float] = field(default_factory=dict)
    """For each model of Triton's: mean requests in one execution, as its dynamic batcher made them."""
    notes: tuple[str, ...] = ()
    """What is odd about these figures, such as a server that was started again during the run."""
    itl_seconds: float | None = None
    """Mean time between two tokens of an answer."""


@dataclass(frozen=True)
class CountComparison:
    """One count as both sides have it, over the whole run with warm-up. `note` says what is counted.

    Both may be right and yet differ: of a client that left, the server may have made tokens that nobody saw. `fewer`
    and `more` say by how many the server may have less or more than the client for a reason that the note tells; both
    are 0 where the counts must be equal, and `more` is None where there is no bound.
    """

    name: str
    client: int
    server: int
    note: str = ""
    allowed_fewer: int = 0
    allowed_more: int | None = 0

    @property
    def difference(self) -> int:
        return self.client - self.server

    @property
    def consistent(self) -> bool:
        return -self.allowed_fewer <= -self.difference and (
            self.allowed_more is None or -self.difference <= self.allowed_more
        )


@dataclass(frozen=True)
class Cost:
    """Per million tokens, from a price per hour: of output tokens, and of input and output tokens together."""

    currency: str
    price_per_hour: float
    per_million_output: float | None
    per_million_total: float | None
    per_million_good_output: float | None
    """Only the tokens of good requests count."""


@dataclass(frozen=True)
class Validity:
    """How far the load generator itself can be trusted: `reasons` says why not, and is empty where it can."""

    reasons: tuple[str, ...]
    schedule_lag: DistributionSummary | None
    """Seconds from due to sent."""
    cpu_cores: Mapping[str, float]
    """Mean processor cores of each of its processes, by name."""
    cpu_peak: float
    loop_lag: float
    """The worst delay of an event loop, in seconds."""
    notes: tuple[str, ...] = ()
    """What a reader must know of the figures that is no fault of the generator's: tokens that came in bunches."""

    @property
    def reliable(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Timeline:
    """Columns of equal length, one value for each second from the run's start; None where nothing was measured."""

    t: tuple[float, ...]
    columns: Mapping[str, tuple[float | None, ...]]
    """due, sent, completed, cancelled, failed (requests in that second; failed: also rejected, late and unfinished);
    open (requests, at the second's end); tokens (that came in it); ttft_p50, ttft_p99 (seconds, of requests due in it),
    itl_p50, itl_p99 (seconds, of gaps that ended in it); running, waiting (requests), kv_use (0 to 1; the server's);
    cpu (processor cores of all of the generator's processes), lag (seconds, the worst of their event loops)."""


@dataclass(frozen=True)
class LoadPhase:
    """A part of the measured time in which the load was level, or nearly so: a step, or a short piece of a ramp.

    Times are seconds from the run's start. `latencies` is as a Summary's, of the requests due in this part.
    """

    start: float
    end: float
    offered_per_second: float
    completed_per_second: float
    tokens_per_second: float
    latencies: Mapping[str, DistributionSummary]


@dataclass(frozen=True)
class Summary:
    """All figures of one run.

    `latencies` has a `DistributionSummary` in seconds under each of `ttft`, `e2e` (from the moment a request was due),
    `ttft_sent`, `e2e_sent` (from the moment it was sent), `itl` (gaps between responses of all requests, pooled) and
    `tpot` ((last - first response) / (output tokens - 1), one a request of two responses or more). Only completed
    requests count, but for `itl`, `ttft` and `ttft_sent`, which have those of cancelled ones too as far as they came. A
    name is missing where nothing was measured: whole answers have end-to-end times alone.
    """

    measured_seconds: float
    """The plan's seconds, or less where the run ended before."""
    requests: Requests
    offered_per_second: float
    """Requests due in the measured part, by its seconds."""
    completed_per_second: float
    """Requests that were completed in the measured part, whenever they were due, by its seconds."""
    tokens: Tokens
    latencies: Mapping[str, DistributionSummary]
    slo: tuple[SloResult, ...]
    goodput: Goodput | None
    server: ServerSide | None
    reconciliation: tuple[CountComparison, ...]
    cost: Cost | None
    validity: Validity
    timeline: Timeline
    metadata: Mapping[str, Any]
    """Versions, deployment, machine, when it began; and, as `plan`, the plan."""
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """Under the names of `latencies`: (percentile from 0 to 100, seconds), ascending, closer together towards 100, and
    no closer than there are requests: between 99 and 100 none where there are fewer than a hundred but the last."""
    load_phases: tuple[LoadPhase, ...] = ()
    """Empty where the load was level all the time."""
    offered_sessions_per_second: float | None = None
    """Sessions due in the measured part, by its seconds; None in reports that older versions wrote."""

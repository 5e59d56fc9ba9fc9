"""The figures of a run: the content of `report.json`, and the input of reports, sweeps and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class DistributionSummary:
    """The distribution of one quantity, in its unit (seconds for times). Percentiles are linear between order
    statistics."""

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
    """Requests due in the measured part, by outcome. `errors` counts their codes."""

    due: int
    completed: int
    cancelled: int
    rejected: int
    timed_out: int
    failed: int
    unfinished: int
    errors: Mapping[str, int] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    """One message for each code: that of the first request with it."""
    empty: int = 0
    """Completed requests whose answer has no token."""

    @property
    def not_cancelled(self) -> int:
        """Requests whose client did not cancel as planned; the basis of error rate and goodput."""
        return self.due - self.cancelled

    @property
    def lost(self) -> int:
        """Requests that were not completed although the client did not cancel."""
        return self.rejected + self.timed_out + self.failed + self.unfinished

    @property
    def answered(self) -> int:
        """Completed requests whose answer has a token, or that an encoder computed."""
        return self.completed - self.empty

    @property
    def error_rate(self) -> float:
        """The fraction of rejected, late, failed and unfinished requests among those not cancelled; 0 without any."""
        return self.lost / self.not_cancelled if self.not_cancelled else 0.0


@dataclass(frozen=True)
class Tokens:
    """`input` and `output` count the requests due in the measured part. `per_second` counts all output tokens that
    arrived in the measured part, of any request: responses with tokens, weighted by their request's tokens per
    response."""

    input: int
    output: int
    per_second: float
    per_response: float
    """Above 1, a response contains several tokens, and the gap between responses is not the gap between tokens."""
    input_per_request: float | None = None
    """Mean over the requests for which the server reported it; None if it did for none."""
    first_input: float | None = None
    first_input_requested: float | None = None
    """Mean of sessions' first requests, and what the workload asked for in these; None if prompts are not generated
    with a length, or their files do not exist any more."""


@dataclass(frozen=True)
class Texts:
    """What an encoder was asked to compute: `texts` and `tokens` (their input tokens) of the requests that were
    completed among those due in the measured part. The rates count the requests that ended in the measured part."""

    texts: int
    tokens: int
    per_second: float
    tokens_per_second: float
    per_request: float | None = None
    """Mean texts of a request."""
    tokens_per_text: float | None = None
    audio_seconds: float | None = None
    """Of the completed requests' audio; None without any."""
    audio_per_second: float | None = None
    """Seconds of audio in a second: how many times real time."""
    real_time_factor: float | None = None
    """Mean of the requests: end-to-end seconds for a second of audio."""


@dataclass(frozen=True)
class Throughput:
    """What a server is there for, per second of the measured part: output tokens, or texts of an encoder."""

    value: float
    unit: str


@dataclass(frozen=True)
class SloResult:
    """One bound of the SLO, such as `p99 ttft <= 500ms`, with the measured value and the verdict.

    `value` and `limit` are seconds, or a fraction of 1 for `error_rate`. In percentiles and maxima of everything but
    ITL, a request without a value whose client stayed counts as infinitely late; see `slo.Slo`. `value` is None if it
    is infinite or nothing was measured; the bound is then missed. `samples` is the number of counted requests, or of
    gaps for ITL. `note` gives the number of lost requests if it matters, and whether there were too few; see
    `slo.required_samples`.
    """

    text: str
    value: float | None
    limit: float
    met: bool
    samples: int = 0
    note: str = ""
    evaluated: bool = True
    """False if tokens came in bunches and the verdict depends on that; the bound then counts as missed."""

    @property
    def verdict(self) -> str:
        return "met" if self.met else "missed" if self.evaluated else "not evaluated"


@dataclass(frozen=True)
class Goodput:
    """Requests that met the SLO individually: completed, with each latency within the SLO's limits.

    A request's TTFT, TPOT and end-to-end time are its own; its ITL is the mean of its gaps, as in AIPerf (for an SLO on
    the 99th percentile, one gap in a hundred may be longer). If the SLO limits one quantity twice (`p50 ttft <= 200ms`,
    `p99 ttft <= 1s`), the wider limit applies, since the narrower one is for half of the requests.
    """

    good: int
    per_second: float
    of_sent: float
    """Among all that were due, including rejected, late and failed ones, without those whose client cancelled as
    planned."""
    of_completed: float


@dataclass(frozen=True)
class ServerSide:
    """The server's own figures over the measured part; None if its metrics page lacks them.

    Counters are differences between the samples nearest to the ends of the part; gauges use all samples between.
    """

    queue_seconds: float | None
    """Mean time in the queue, from the engine if it reports it, else from Triton."""
    ttft_seconds: float | None
    requests_per_batch: float | None
    """Mean number of requests in the batch, over the samples with at least one."""
    kv_use_peak: float | None
    """From 0 to 1."""
    waiting_peak: float | None
    rejected: float | None
    cancelled: float | None
    output_tokens: float | None
    executions: Mapping[str, float] = field(default_factory=dict)
    """For each Triton model: mean requests per execution, as formed by its dynamic batcher."""
    notes: tuple[str, ...] = ()
    """Anomalies, such as a server that was restarted during the run."""
    itl_seconds: float | None = None
    """Mean time between two tokens of an answer."""


@dataclass(frozen=True)
class EncoderSide:
    """An encoder's own figures over the measured part, as `ServerSide` those of an engine that generates."""

    queue_seconds: float | None
    """Mean time of a text in the queue."""
    real_tokens: float | None
    padded_tokens: float | None
    """Positions that were computed: texts times the longest text of each micro-batch."""
    texts_per_batch: float | None
    """Mean number of texts in a micro-batch."""
    tokens_per_batch: float | None
    """Mean padded tokens of a micro-batch."""
    waiting_peak: float | None
    """The largest number of texts that waited."""
    refused: Mapping[str, float] = field(default_factory=dict)
    """Refused texts by reason."""
    executions: Mapping[str, float] = field(default_factory=dict)
    """As in `ServerSide`; for an encoder, texts per execution."""
    notes: tuple[str, ...] = ()

    @property
    def padding(self) -> float | None:
        """Padded tokens for each real one."""
        return self.padded_tokens / self.real_tokens if self.padded_tokens and self.real_tokens else None


@dataclass(frozen=True)
class CountComparison:
    """One count on both sides, over the whole run including warm-up. `note` says what is counted.

    Both may be right and still differ: if a client disconnects, the server may have generated tokens that no client
    saw. `fewer` and `more` are how many less or more the server may count, for a reason given in the note. Both are 0
    if the counts must be equal; `more` is None if there is no bound.
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
    """Cost per million tokens, from a price per hour: of output tokens, and of input and output tokens together."""

    currency: str
    price_per_hour: float
    per_million_output: float | None
    per_million_total: float | None
    per_million_good_output: float | None
    """The same with only the tokens of good requests."""


@dataclass(frozen=True)
class TextCost:
    """Cost per million texts, and per million input tokens of an encoder, from a price per hour."""

    currency: str
    price_per_hour: float
    per_million_texts: float | None
    per_million_tokens: float | None
    per_million_good_texts: float | None
    """The same with only the texts of good requests."""


@dataclass(frozen=True)
class AuditCheck:
    """One check of an audit, named by MLPerf's compliance test; `passed` is None if it could not be made.

    `value` and `limit` are relative: how much faster a repeated sample was, how far the mean length is off, or the
    fraction of answers that passed. `note` has the figures in words, or why there are none.
    """

    test: str
    name: str
    passed: bool | None
    value: float | None = None
    limit: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        return "not checked" if self.passed is None else "passed" if self.passed else "failed"


@dataclass(frozen=True)
class Validity:
    """Whether the load generator itself was reliable: `reasons` says why not, and is empty if it was."""

    reasons: tuple[str, ...]
    schedule_lag: DistributionSummary | None
    """Seconds from due to sent."""
    cpu_cores: Mapping[str, float]
    """Mean processor cores of each process, by name."""
    cpu_peak: float
    loop_lag: float
    """The longest delay of an event loop, in seconds."""
    notes: tuple[str, ...] = ()
    """Remarks about the figures that are not the generator's fault, such as tokens that came in bunches."""


@dataclass(frozen=True)
class Timeline:
    """Columns of equal length with one value per second from the run's start; None if nothing was measured."""

    t: tuple[float, ...]
    columns: Mapping[str, tuple[float | None, ...]]
    """due, sent, completed, cancelled, failed (requests in that second; failed includes rejected, late and unfinished);
    open (requests, at the second's end); tokens (that arrived in it); ttft_p50, ttft_p99 (seconds, of requests due
    in it), itl_p50, itl_p99 (seconds, of gaps that ended in it); running, waiting (requests), kv_use (0 to 1), as
    the server reports; cpu (processor cores of all generator processes), lag (seconds, the longest of their event
    loops). Of an encoder: texts (of requests that ended in it) in place of tokens; e2e_p50, e2e_p99 (seconds, of
    requests due in it) and waiting_texts in place of latencies of tokens and of the engine's figures."""


@dataclass(frozen=True)
class LoadPhase:
    """A phase of the measured time with constant, or nearly constant, load: a step, or a short piece of a ramp.

    Times are seconds from the run's start. `latencies` is as in a Summary, for the requests due in this phase.
    """

    start: float
    end: float
    offered_per_second: float
    completed_per_second: float
    latencies: Mapping[str, DistributionSummary]
    tokens_per_second: float | None = None
    """Output tokens; None for an encoder."""
    texts_per_second: float | None = None
    """Texts of an encoder."""

    @property
    def throughput(self) -> float:
        """Output tokens, or texts of an encoder, per second."""
        return self.tokens_per_second or self.texts_per_second or 0.0


@dataclass(frozen=True)
class Summary:
    """All figures of one run.

    `latencies` has a `DistributionSummary` in seconds for each of `ttft`, `e2e` (from when a request was due),
    `ttft_sent`, `e2e_sent` (from when it was sent), `itl` (gaps between responses of all requests, pooled) and `tpot`
    ((last - first response) / (output tokens - 1), one per request with at least two responses). Only completed
    requests count, except that `itl`, `ttft` and `ttft_sent` include cancelled ones as far as they got. A name is
    missing if nothing was measured: unary answers and encoders have only end-to-end times. An encoder has `texts` in
    place of `tokens`.
    """

    measured_seconds: float
    """The plan's seconds, or less if the run ended early."""
    requests: Requests
    offered_per_second: float
    """Requests due in the measured part per second."""
    completed_per_second: float
    """Requests completed in the measured part per second, whenever they were due."""
    latencies: Mapping[str, DistributionSummary]
    slo: tuple[SloResult, ...]
    goodput: Goodput | None
    server: ServerSide | EncoderSide | None
    reconciliation: tuple[CountComparison, ...]
    cost: Cost | TextCost | None
    validity: Validity
    timeline: Timeline
    metadata: Mapping[str, Any]
    """Versions, deployment, machine and start time; and the plan, as `plan`."""
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """By the names of `latencies`: (percentile from 0 to 100, seconds), ascending and denser towards 100, but no denser
    than the requests allow: with fewer than a hundred requests, nothing between 99 and 100."""
    load_phases: tuple[LoadPhase, ...] = ()
    """Empty if the load was constant."""
    offered_sessions_per_second: float | None = None
    """Sessions due in the measured part per second; None in reports by older versions."""
    tokens: Tokens | None = None
    texts: Texts | None = None
    audit: tuple[AuditCheck, ...] = ()

    @property
    def throughput(self) -> Throughput:
        if self.texts is not None:
            return Throughput(self.texts.per_second, "texts/s")
        return Throughput(self.tokens.per_second if self.tokens else 0.0, "output tokens/s")

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON, without the ones that the task does not have."""
        figures = {name: value for name, value in asdict(self).items() if name not in ("tokens", "texts") or value}
        per_second = ("tokens_per_second", "texts_per_second")
        figures["load_phases"] = [
            {name: value for name, value in phase.items() if name not in per_second or value is not None}
            for phase in figures["load_phases"]
        ]
        return figures

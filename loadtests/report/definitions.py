"""Definitions of all figures, with the differences from other tools."""

from __future__ import annotations

from loadtests.report.tables import Table

_FROM_SENT = "Other tools count from sent: compare theirs with TTFT from sent."

_DEFINITIONS = (
    (
        "due",
        "When a request should be sent. In an open loop this is its time in the schedule, whatever happened to "
        "earlier requests; in a closed loop it is when the user was free to send it.",
        "",
    ),
    (
        "TTFT, from due",
        "Time to first token: from due to the first response with tokens. It includes any wait because the server or "
        "the generator was behind.",
        f"{_FROM_SENT} vLLM's benchmark takes the first chunk even if its text is empty.",
    ),
    ("TTFT, from sent", "The same, from when the request was actually sent.", ""),
    (
        "ITL",
        "Inter-token latency: each gap between one response with tokens and the next, the gaps of all requests pooled. "
        "Where a response carries several tokens this is not the gap between tokens.",
        "So does vLLM's benchmark. What AIPerf calls ITL is our TPOT, and its ICL our ITL. genai-perf divides each gap "
        "by its tokens.",
    ),
    (
        "TPOT",
        "Time per output token: (last response - first response) / (output tokens - 1), one figure for each request "
        "of two responses or more.",
        "guidellm's TPOT includes the TTFT: (last token - start) / tokens; so does inference-perf's NTPOT.",
    ),
    (
        "end to end",
        "From due (or from sent) to the last response of a completed request.",
        "Other tools count from sent.",
    ),
    (
        "p50, p99, ...",
        "50%, 99%, ... of all values are at or below it, with linear interpolation. Percentiles are computed from all "
        "values of all processes, never averaged.",
        "",
    ),
    (
        "output tokens/s",
        "Tokens per second that arrived in the measured part, over all requests. It is not the speed that one user "
        "sees, which is 1 / TPOT.",
        "AIPerf reports both; its speed per user is 1 / (its ITL).",
    ),
    (
        "goodput",
        "Requests that met the SLO individually: completed, with each latency within the SLO's limits (for ITL the "
        "mean of the request's gaps). Of sent: among all that were due; rejected, late, failed and unfinished "
        "requests count as not good, and those that the client cancelled as planned are left out. Of completed: only "
        "among those.",
        "vLLM's benchmark and AIPerf only count requests that did not fail.",
    ),
    (
        "lost",
        "Rejected (the server was full), late (past the deadline), failed (any other error) and unfinished (the run "
        "ended first) requests, among all except those that the client cancelled as planned. They have no latency, so "
        "tables and charts of latencies exclude them. In percentiles and maxima of the SLO each counts as infinitely "
        "late, except for ITL, since an answer that did not arrive has no gaps.",
        "",
    ),
    (
        "open",
        "Requests that were sent and have not ended, as counted by the clients. Running and waiting are the server's "
        "own counts.",
        "",
    ),
    ("schedule lag", "From due to sent: the delay caused by the load generator itself.", ""),
    (
        "cost",
        "The price per hour divided by the tokens per hour at the measured rate.",
        "Services often charge different prices for input and output; here one price covers both.",
    ),
)


_OF_GENERATION = ("TTFT, from due", "TTFT, from sent", "ITL", "TPOT", "output tokens/s", "goodput", "lost", "cost")
_OF_ENCODERS = (
    (
        "texts/s, tokens/s",
        "Texts, and their tokens with special ones, of the requests that ended in the measured part, per second.",
        "",
    ),
    (
        "goodput",
        "Requests that met the SLO individually: completed, with their end-to-end time within the SLO's limit.",
        "",
    ),
    (
        "lost",
        "Rejected (the server was full), late (past the deadline), failed (any other error; one text with an error "
        "fails its request) and unfinished (the run ended first) requests, among all except those that the client "
        "cancelled as planned. In percentiles and maxima of the SLO each counts as infinitely late.",
        "",
    ),
    (
        "padded / real tokens",
        "An encoder computes texts in micro-batches, each text as long as the longest one. Real tokens are those of "
        "the texts; padded tokens are the positions that were computed for them.",
        "",
    ),
    (
        "audio, real-time factor",
        "Seconds of audio of the requests that ended in the measured part, per second. The real-time factor is of each "
        "request: its end-to-end time by the length of its audio.",
        "Some tools call the first one RTFx.",
    ),
    ("cost", "The price per hour divided by the texts, or their tokens, per hour at the measured rate.", ""),
)


def definitions(encoder: bool = False) -> Table:
    """Return the definitions of the figures of a model that generates, or of an encoder."""
    rows: tuple[tuple[str, str, str], ...] = _DEFINITIONS
    if encoder:
        rows = (*(row for row in _DEFINITIONS if row[0] not in _OF_GENERATION), *_OF_ENCODERS)
    return Table(("figure", "definition", "in other tools"), rows, words=3)

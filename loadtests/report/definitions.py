"""What each figure means, in words, and where other tools mean something else by the same name."""

from __future__ import annotations

from loadtests.report.tables import Table

_FROM_SENT = "Other tools count from sent: compare theirs with TTFT from sent."

_DEFINITIONS = (
    (
        "due",
        "The moment at which a request ought to be sent. In an open loop the schedule says it, whatever became of "
        "earlier requests; in a closed loop it is when the user was free to send it.",
        "",
    ),
    (
        "TTFT, from due",
        "Time to first token: from due to the first response with tokens. A request that had to wait because the "
        "server or the generator was behind has that wait in it.",
        f"{_FROM_SENT} vLLM's benchmark takes the first chunk even if its text is empty.",
    ),
    ("TTFT, from sent", "The same from the moment the request was really sent.", ""),
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
        "guidellm's holds the TTFT too: (last token - start) / tokens; so does inference-perf's NTPOT.",
    ),
    (
        "end to end",
        "From due (or from sent) to the last response of a completed request.",
        "Other tools count from sent.",
    ),
    (
        "p50, p99, ...",
        "Half, 99 in a hundred, ... of all values lie at or below it; between two values it is linear. They are taken "
        "from all values of all processes, never averaged.",
        "",
    ),
    (
        "output tokens/s",
        "Tokens that came in the measured part, of all requests together, for each second of it. It is not the speed "
        "that one user sees, which is 1 / TPOT.",
        "AIPerf tells both; its speed for each user is 1 / (its ITL).",
    ),
    (
        "goodput",
        "Requests that were good each on its own: completed, and with each latency within the SLO's limits; of ITL "
        "the mean of its gaps. "
        "Of sent, which is all that were due: rejected, late, failed and unfinished ones count as not good; who left "
        "as planned is left out. "
        "Of completed: only among those.",
        "vLLM's benchmark and AIPerf count among requests that did not fail.",
    ),
    (
        "lost",
        "Rejected (the server had no room), late (not there in its time), failed (any other error) and unfinished "
        "(the run ended first) requests together, of all but those that left as planned. They have no latency, so the "
        "tables and charts of latencies are without them; in the SLO's percentiles and maxima each counts as one "
        "that took for ever, but for ITL: an answer that did not come has no gaps.",
        "",
    ),
    (
        "open",
        "Requests that were sent and have not ended, as the clients count them. Running and waiting are the server's "
        "own count.",
        "",
    ),
    ("schedule lag", "From due to sent: what the load generator itself was late.", ""),
    (
        "cost",
        "The price of an hour, divided by the tokens of an hour at the measured pace.",
        "Prices of services often differ for input and output; here one price pays for both.",
    ),
)


def definitions() -> Table:
    return Table(("figure", "what it is here", "what others mean by it"), _DEFINITIONS, words=3)

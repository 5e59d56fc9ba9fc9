"""What a run says in one sentence, and in a few large figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.analysis.summary import Summary
from loadtests.report.formats import count, money, number, percent, seconds
from loadtests.report.slo_text import overall_verdict, slo_text

_LENGTH_TOLERANCE = 0.1
"""By how much prompts may be longer or shorter than was asked for before a reader must know of it."""


@dataclass(frozen=True)
class Tile:
    """One main figure: `note` says what it is of, or what stands beside it."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


def headline(summary: Summary) -> str:
    """How much load, which latency, whether the SLO was met, what was lost, and what it cost, in one sentence."""
    requests = summary.requests
    if not requests.due:
        return f"Nothing was measured: no request was due in {seconds(summary.measured_seconds)}."
    if not requests.completed:
        return f"None of {count(requests.due, 'request')} was completed in {seconds(summary.measured_seconds)}."
    said = [f"At {load_text(summary)} {_latency(summary)}"]
    if summary.slo:
        said.append(_slo_sentence(summary))
    else:
        said.append(f"{_completed(summary)} of the requests were completed, and nothing was promised")
    if requests.error_rate:
        said.append(f"{percent(requests.error_rate)} of the requests were lost and are not in these times")
    if summary.cost and summary.cost.per_million_output is not None:
        price = money(summary.cost.per_million_output, summary.cost.currency)
        said.append(f"a million output tokens cost {price}")
    return "; ".join(said) + "."


def load_text(summary: Summary) -> str:
    """How much was asked for, in words."""
    arrivals = plan_in(summary).get("arrivals", {})
    rate = f"{number(summary.offered_per_second)} requests/s"
    peak = max((value for value in summary.timeline.columns.get("open", ()) if value is not None), default=None)
    if arrivals.get("kind") == "users" and peak is not None:
        return f"{count(round(peak), 'request')} at a time ({rate})"
    return rate


def plan_in(summary: Summary) -> Mapping[str, Any]:
    """The plan that the run was made from; empty where the facts have none."""
    found = summary.metadata.get("plan")
    return found if isinstance(found, Mapping) else {}


def input_length_mismatch(summary: Summary) -> str:
    """What was asked for, where the prompts were not nearly as long; empty where they were, or nothing was asked."""
    tokens = summary.tokens
    found, asked = tokens.first_input, tokens.first_input_requested
    if not found or not asked or abs(found / asked - 1) <= _LENGTH_TOLERANCE:
        return ""
    turns = "" if found == tokens.input_per_request else f", and {number(found)} sent, in a session's first"
    workload = plan_in(summary).get("workload")
    exact = isinstance(workload, Mapping) and workload.get("tokenizer")
    return f"a request; asked for {number(asked)}{turns}" + ("" if exact else "; give --tokenizer")


def input_text(summary: Summary) -> str:
    """How long prompts were, in words."""
    mean = summary.tokens.input_per_request
    if mean is None:
        return ""
    off = input_length_mismatch(summary)
    return f"input {number(mean)} tokens a request" + (f" ({off.removeprefix('a request; ')})" if off else "")


def _latency(summary: Summary) -> str:
    told = (
        (("ttft", "the first token came"), ("itl", "each further one"))
        if "ttft" in summary.latencies
        else (("e2e", "the answer was there"),)
    )
    found = [
        f"{words} within {seconds(summary.latencies[name].p99)}" for name, words in told if name in summary.latencies
    ]
    return " and ".join(found) + " (p99)" if found else "no latency could be measured"


def _slo_sentence(summary: Summary) -> str:
    found = overall_verdict(summary.slo)
    told = ", ".join(slo_text(bound) for bound in summary.slo if bound.verdict == found)
    return f"the SLO {'could not be evaluated' if found == 'not evaluated' else f'was {found}'} ({told})"


def _completed(summary: Summary) -> str:
    staying = summary.requests.not_cancelled
    return percent(summary.requests.completed / staying) if staying else percent(None)


def tiles(summary: Summary) -> Sequence[Tile]:
    """The main figures; those that the run has nothing for are left out."""
    requests = summary.requests
    lost = requests.rejected + requests.timed_out + requests.failed + requests.unfinished
    made = [
        Tile(
            "Requests",
            f"{number(summary.completed_per_second)}/s",
            f"completed, of {number(summary.offered_per_second)}/s due",
        ),
        Tile("Output tokens", f"{number(summary.tokens.per_second)}/s", "of all requests together"),
    ]
    if summary.tokens.input_per_request is not None:
        off = input_length_mismatch(summary)
        made.append(
            Tile("Input tokens", number(summary.tokens.input_per_request), off or "a request", "bad" * bool(off))
        )
    for name, called in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "End to end")):
        if name in summary.latencies:
            spread = summary.latencies[name]
            made.append(Tile(f"{called}, p99", seconds(spread.p99), f"p50 {seconds(spread.p50)}"))
    if summary.goodput:
        good = summary.goodput
        note = f"of sent / of completed; {number(good.per_second)} requests/s"
        made.append(Tile("Goodput", f"{percent(good.of_sent)} / {percent(good.of_completed)}", note))
    made.append(
        Tile(
            "Lost",
            percent(requests.error_rate) if requests.not_cancelled else percent(None),
            f"{lost:,} of {count(requests.not_cancelled, 'request')}",
            "bad" if lost else "",
        )
    )
    if summary.cost:
        made.append(
            Tile(
                "Cost",
                money(summary.cost.per_million_output, summary.cost.currency),
                f"for a million output tokens, at {money(summary.cost.price_per_hour, summary.cost.currency)} an hour",
            )
        )
    return made

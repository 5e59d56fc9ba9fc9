"""The result of a run in one sentence, and its main figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.analysis.summary import EncoderSide, Summary, TextCost, Texts, Tokens
from loadtests.report.formats import count, money, number, percent, seconds, text
from loadtests.report.slo_text import overall_verdict, slo_text

_LENGTH_TOLERANCE = 0.1
"""Relative difference between the sent and the requested prompt length above which readers are told."""


@dataclass(frozen=True)
class Tile:
    """One main figure; `note` explains it or adds a related figure."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


def headline(summary: Summary) -> str:
    """Return load, latency, SLO verdict, lost requests and cost in one sentence."""
    requests = summary.requests
    if not requests.due:
        return f"Nothing was measured: no request was due in {seconds(summary.measured_seconds)}."
    if not requests.completed:
        return f"None of {count(requests.due, 'request')} was completed in {seconds(summary.measured_seconds)}."
    if not requests.answered:
        return f"All {count(requests.completed, 'answer')} were empty."
    parts = [f"At {load_text(summary)} {_latency(summary)}"]
    if summary.slo:
        parts.append(_slo_sentence(summary))
    else:
        staying = requests.not_cancelled
        completed = percent(requests.completed / staying if staying else None)
        parts.append(f"{completed} of the requests were completed, and no SLO was given")
    if requests.error_rate:
        parts.append(f"{percent(requests.error_rate)} of the requests were lost and are not in these latencies")
    if words := cost_text(summary):
        parts.append(words)
    return "; ".join(parts) + "."


def cost_text(summary: Summary) -> str:
    """Return what a million output tokens or texts cost; empty without a price."""
    cost = summary.cost
    if isinstance(cost, TextCost):
        return f"a million texts cost {money(cost.per_million_texts, cost.currency)}" if cost.per_million_texts else ""
    if cost is None or cost.per_million_output is None:
        return ""
    return f"a million output tokens cost {money(cost.per_million_output, cost.currency)}"


def load_text(summary: Summary) -> str:
    """Return the load in words."""
    arrivals = plan_in(summary).get("arrivals", {})
    rate = f"{number(summary.offered_per_second)} requests/s"
    peak = max((value for value in summary.timeline.columns.get("open", ()) if value is not None), default=None)
    if arrivals.get("kind") == "users" and peak is not None:
        return f"{count(round(peak), 'request')} at a time ({rate})"
    return rate


def plan_in(summary: Summary) -> Mapping[str, Any]:
    """Return the plan of the run; empty if the metadata has none."""
    plan = summary.metadata.get("plan")
    return plan if isinstance(plan, Mapping) else {}


def input_length_mismatch(summary: Summary) -> str:
    """Return the requested prompt length if the sent one differs much; empty otherwise."""
    tokens = summary.tokens
    if tokens is None:
        return ""
    sent, requested = tokens.first_input, tokens.first_input_requested
    if not sent or not requested or abs(sent / requested - 1) <= _LENGTH_TOLERANCE:
        return ""
    turns = "" if sent == tokens.input_per_request else f", and {number(sent)} sent, in a session's first"
    workload = plan_in(summary).get("workload")
    exact = isinstance(workload, Mapping) and workload.get("tokenizer")
    return f"a request; asked for {number(requested)}{turns}" + ("" if exact else "; give --tokenizer")


def input_text(summary: Summary) -> str:
    """Return the length of prompts or texts in words."""
    if (texts := summary.texts) is not None and texts.audio_seconds is not None:
        return f"{number(texts.audio_seconds / texts.texts)} s of audio a request"
    if texts is not None:
        mean_texts = f"{number(texts.per_request)} texts a request"
        return mean_texts + (f", {number(texts.tokens_per_text)} tokens a text" if texts.tokens_per_text else "")
    mean = summary.tokens.input_per_request if summary.tokens else None
    if mean is None:
        return ""
    off = input_length_mismatch(summary)
    return f"input {number(mean)} tokens a request" + (f" ({off.removeprefix('a request; ')})" if off else "")


def missing_figures_text(summary: Summary) -> str:
    """Return why the server's own figures are unknown, and what to do; empty if there are any."""
    if summary.server is not None and any(
        value is not None and value != {} for name, value in vars(summary.server).items() if name != "notes"
    ):
        return ""
    reason = summary.metadata.get("server_metrics_error")
    why = f" ({text(reason)})" if reason else ""
    return (
        f"the server's own figures, such as its queue and batches, are unknown{why}; pass the metrics page of Triton as"
        " --metrics-url http://HOST:8002/metrics"
    )


def _latency(summary: Summary) -> str:
    shown = (
        (("ttft", "the first token came"), ("itl", "each further one"))
        if "ttft" in summary.latencies
        else (("e2e", "the answer was there"),)
    )
    parts = [
        f"{words} within {seconds(summary.latencies[name].p99)}" for name, words in shown if name in summary.latencies
    ]
    return " and ".join(parts) + " (p99)" if parts else "no latency could be measured"


def _slo_sentence(summary: Summary) -> str:
    verdict = overall_verdict(summary.slo)
    bounds = ", ".join(slo_text(bound) for bound in summary.slo if bound.verdict == verdict)
    return f"the SLO {'could not be evaluated' if verdict == 'not evaluated' else f'was {verdict}'} ({bounds})"


def _token_tiles(summary: Summary, tokens: Tokens) -> Iterator[Tile]:
    yield Tile("Output tokens", f"{number(tokens.per_second)}/s", "of all requests together")
    if tokens.input_per_request is not None:
        off = input_length_mismatch(summary)
        yield Tile("Input tokens", number(tokens.input_per_request), off or "a request", "bad" * bool(off))


def _text_tiles(summary: Summary, texts: Texts) -> Iterator[Tile]:
    if texts.audio_per_second is not None:
        yield Tile("Audio", f"{number(texts.audio_per_second)} s/s", "times real time, of all requests together")
        yield Tile("Real-time factor", number(texts.real_time_factor), "seconds for a second of audio, mean")
        return
    yield Tile("Texts", f"{number(texts.per_second)}/s", f"{number(texts.per_request)} a request")
    yield Tile("Tokens", f"{number(texts.tokens_per_second)}/s", f"{number(texts.tokens_per_text)} a text")
    if isinstance(summary.server, EncoderSide) and summary.server.padding is not None:
        yield Tile("Padded / real tokens", number(summary.server.padding), "computed by the server")


def tiles(summary: Summary) -> Sequence[Tile]:
    """Return the main figures that the run has."""
    requests = summary.requests
    made = [
        Tile(
            "Requests",
            f"{number(summary.completed_per_second)}/s",
            f"completed, of {number(summary.offered_per_second)}/s due",
        ),
        *(_text_tiles(summary, summary.texts) if summary.texts else ()),
        *(_token_tiles(summary, summary.tokens) if summary.tokens else ()),
    ]
    for name, called in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "End to end")):
        if name in summary.latencies:
            distribution = summary.latencies[name]
            made.append(Tile(f"{called}, p99", seconds(distribution.p99), f"p50 {seconds(distribution.p50)}"))
    if summary.goodput:
        good = summary.goodput
        note = f"of sent / of completed; {number(good.per_second)} requests/s"
        made.append(Tile("Goodput", f"{percent(good.of_sent)} / {percent(good.of_completed)}", note))
    made.append(
        Tile(
            "Lost",
            percent(requests.error_rate if requests.not_cancelled else None),
            f"{requests.lost:,} of {count(requests.not_cancelled, 'request')}",
            "bad" if requests.lost else "",
        )
    )
    if cost := summary.cost:
        of_texts = isinstance(cost, TextCost)
        value = cost.per_million_texts if isinstance(cost, TextCost) else cost.per_million_output
        what = "texts" if of_texts else "output tokens"
        note = f"for a million {what}, at {money(cost.price_per_hour, cost.currency)} an hour"
        made.append(Tile("Cost", money(value, cost.currency), note))
    return made

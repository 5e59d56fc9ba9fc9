"""The tables of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from loadtests.analysis.summary import (
    AuditCheck,
    Cost,
    CountComparison,
    DistributionSummary,
    EncoderSide,
    Requests,
    ServerSide,
    SloResult,
    Summary,
    TextCost,
    Validity,
)
from loadtests.report.formats import money, number, percent, seconds, signed, text
from loadtests.report.slo_text import overall_verdict, slo_text, slo_value


@dataclass(frozen=True)
class Cell:
    """One cell of a table. `tone`, "bad" or "good", is shown in red or green; the text says the same. `link` is a file
    to open, relative to the page."""

    text: str
    tone: str = ""
    link: str = ""

    @property
    def address(self) -> str:
        """The link as a URL; always a path."""
        return quote(self.link, errors="replace")


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class Table:
    """The first `words` columns are text, aligned left; the others are figures, aligned right."""

    head: Sequence[str]
    rows: Sequence[Row]
    words: int = 1

    @property
    def cells(self) -> list[list[Cell]]:
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


def audit_table(checks: Sequence[AuditCheck]) -> Table:
    tones = {True: "good", False: "bad", None: ""}
    rows: list[Row] = [
        [check.test, check.name, Cell(check.verdict, tones[check.passed]), text(check.note)] for check in checks
    ]
    return Table(("test", "check", "verdict", "figures"), rows, words=4)


LATENCIES = {
    "ttft": "TTFT, from due",
    "ttft_sent": "TTFT, from sent",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "End to end, from due",
    "e2e_sent": "End to end, from sent",
}
TIMES = ("min", "mean", "p50", "p75", "p90", "p95", "p99", "p999", "max", "std")
TIME_HEADS = ("min", "mean", "p50", "p75", "p90", "p95", "p99", "p99.9", "max", "std. dev.")


def slo_table(results: Sequence[SloResult]) -> Table:
    rows: list[Row] = [
        [
            slo_text(bound),
            as_sentence(bound.note),
            slo_value(bound, bound.limit),
            slo_value(bound, bound.value),
            verdict_cell([bound]),
        ]
        for bound in results
    ]
    return Table(("SLO", "", "limit", "value", "result"), rows, words=2)


def verdict_cell(results: Sequence[SloResult]) -> Cell:
    verdict = overall_verdict(results)
    return Cell(verdict, "good" if verdict == "met" else "bad")


def outcome_table(requests: Requests) -> Table:
    """Return the outcomes of the requests, in order of importance."""
    outcomes = (
        ("completed", requests.completed, "the whole answer was received", ""),
        ("cancelled", requests.cancelled, "the client disconnected before the end, as the workload wanted", ""),
        ("rejected", requests.rejected, "the server was full", "bad"),
        ("timed out", requests.timed_out, "the request missed its deadline", "bad"),
        ("failed", requests.failed, "any other error", "bad"),
        ("unfinished", requests.unfinished, "the run ended before the answer", "bad"),
    )
    rows: list[Row] = [
        [
            name,
            words,
            Cell(f"{count:,}", tone if count else ""),
            percent(count / requests.due if requests.due else None),
        ]
        for name, count, words, tone in outcomes
    ]
    rows.append(["due", "all that should have been sent", f"{requests.due:,}", percent(1.0 if requests.due else None)])
    return Table(("outcome", "meaning", "requests", "of due"), rows, words=2)


def error_table(requests: Requests) -> Table:
    """Return errors by code, the most frequent first, with the first message of each."""
    ranked = sorted(requests.errors.items(), key=lambda item: -item[1])
    rows: list[Row] = [
        [text(code), text(requests.messages.get(code, "")), Cell(f"{count:,}", "bad")] for code, count in ranked
    ]
    return Table(("code", "first message", "requests"), rows, words=2)


def latency_table(latencies: Mapping[str, DistributionSummary]) -> Table:
    rows: list[Row] = [
        [called, *_distribution_cells(latencies[name])] for name, called in LATENCIES.items() if name in latencies
    ]
    return Table(("latency", "count", *TIME_HEADS), rows)


def server_table(summary: Summary, server: ServerSide | EncoderSide) -> Table:
    """Return the server's own figures, next to the clients' corresponding figures."""
    if isinstance(server, EncoderSide):
        return _encoder_table(server)
    ttft, itl = summary.latencies.get("ttft_sent"), summary.latencies.get("itl")
    requests = summary.requests
    whole = sum(1 for bound in (server.rejected, server.cancelled, server.output_tokens) if bound is not None)
    rows: list[Row] = [
        ["mean TTFT (client: from sent)", seconds(server.ttft_seconds), seconds(ttft.mean if ttft else None)],
        ["mean ITL", seconds(server.itl_seconds), seconds(itl.mean if itl else None)],
        ["mean queue time", seconds(server.queue_seconds), ""],
        ["mean batch size", number(server.requests_per_batch), ""],
        ["maximum requests waiting", number(server.waiting_peak), ""],
        ["maximum KV cache use", percent(server.kv_use_peak), ""],
    ]
    if whole:
        rows += [
            ["requests rejected", number(server.rejected), f"{requests.rejected:,}"],
            ["requests cancelled", number(server.cancelled), f"{requests.cancelled:,}"],
            ["output tokens", number(server.output_tokens), f"{summary.tokens.output:,}" if summary.tokens else ""],
        ]
    rows += [
        [f"mean requests per execution of {text(model)}", number(mean), ""] for model, mean in server.executions.items()
    ]
    return Table(("over the measured part", "server", "clients"), rows)


def _encoder_table(server: EncoderSide) -> Table:
    rows: list[Row] = [
        ["padded / real tokens", number(server.padding)],
        ["real tokens", number(server.real_tokens)],
        ["padded tokens", number(server.padded_tokens)],
        ["mean texts of a micro-batch", number(server.texts_per_batch)],
        ["mean padded tokens of a micro-batch", number(server.tokens_per_batch)],
        ["mean queue time", seconds(server.queue_seconds)],
        ["maximum texts waiting", number(server.waiting_peak)],
        *([f"refused: {text(reason)}", number(count)] for reason, count in server.refused.items()),
        *([f"mean texts per execution of {text(model)}", number(mean)] for model, mean in server.executions.items()),
    ]
    return Table(("over the measured part", "server"), rows)


def reconciliation_table(comparisons: Sequence[CountComparison]) -> Table:
    """Return the counts of both sides. Red marks differences without an explanation; explained ones have no colour."""
    rows: list[Row] = [
        [
            text(match.name),
            text(match.note),
            f"{match.client:,}",
            f"{match.server:,}",
            Cell(signed(match.difference), "bad" if not match.consistent else "" if match.difference else "good"),
        ]
        for match in comparisons
    ]
    return Table(("count over the whole run", "what is counted", "clients", "server", "difference"), rows, words=2)


_COSTS = {
    TextCost: {
        "a million texts": "per_million_texts",
        "a million input tokens": "per_million_tokens",
        "a million texts of good requests": "per_million_good_texts",
    },
    Cost: {
        "a million output tokens": "per_million_output",
        "a million tokens, input and output together": "per_million_total",
        "a million output tokens of good requests": "per_million_good_output",
    },
}


def cost_table(cost: Cost | TextCost) -> Table:
    rows = [[words, money(getattr(cost, name), cost.currency)] for words, name in _COSTS[type(cost)].items()]
    return Table((f"at {money(cost.price_per_hour, cost.currency)} an hour", "cost"), rows)


def lag_table(grade: Validity) -> Table | None:
    """Return how late requests were sent."""
    if grade.schedule_lag is None:
        return None
    rows = [["schedule lag", *_distribution_cells(grade.schedule_lag)]]
    return Table(("from due to sent", "count", *TIME_HEADS), rows)


def _distribution_cells(distribution: DistributionSummary) -> list[str]:
    return [f"{distribution.count:,}", *(seconds(getattr(distribution, name)) for name in TIMES)]


def process_table(grade: Validity) -> Table:
    rows: list[Row] = [
        [f"worker {name}" if name.isdigit() else text(name), number(cores)] for name, cores in grade.cpu_cores.items()
    ]
    rows += [["peak of the busiest process", number(grade.cpu_peak)]]
    rows += [["longest event loop delay", seconds(grade.loop_lag)]]
    return Table(("process of the load generator", "processor cores"), rows)


def metadata_tables(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """Yield one table for each group of metadata, single values first and the plan last."""
    groups = {name: value for name, value in metadata.items() if isinstance(value, Mapping) and value}
    alone = {name: value for name, value in metadata.items() if name not in groups}
    if alone:
        yield "The run", Table(("fact", "value"), _flat(alone), words=2)
    for name, group in sorted(groups.items(), key=lambda item: item[0] == "plan"):
        yield text(name.replace("_", " ")).capitalize(), Table(("fact", "value"), _flat(group), words=2)


def as_sentence(note: str) -> str:
    """Return a note as a sentence with a capital letter and a full stop."""
    sentence = text(note)
    return f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}." if sentence else ""


def _flat(group: Mapping[str, Any], before: str = "") -> list[Row]:
    rows: list[Row] = []
    for name, value in group.items():
        called = f"{before}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            rows += _flat(value, f"{called}: ")
        elif called.endswith(" bytes") and isinstance(value, int):
            rows.append((text(called.removesuffix(" bytes")), f"{number(value / 2**30)} GiB"))
        elif value not in (None, "", [], ()):
            rows.append((text(called), text(_value_text(value))))
    return rows


def _value_text(value: Any) -> str:
    """Return a value as text; for lists of objects, their values."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(map(_value_text, value.values()))
    return ", ".join(map(_value_text, value)) if isinstance(value, list | tuple) else str(value)

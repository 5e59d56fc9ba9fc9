"""Ways to batch texts of mixed lengths, on one engine: MiniLM in fp32, lengths log-normal with median 40 and 90th
percentile 200 tokens.

Each round embeds the same corpus in every way, one after the other: alone (batches of one), static (32 texts in order
of arrival, padded to the longest), dynamic (Triton's own batching by size and window, with 64 callers), planned
(through the server, which groups by length), sorted (a loop that may sort the whole corpus, the best case), and with
sentence-transformers' OpenVINO backend and vLLM. Peers are stopped while others run. All times are from texts to
vectors. `--charts DIRECTORY` draws speed and padding as two SVGs, and with `--draw` those of the last run.
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from inflight_client import Client

from benchmarks.encoders.chart import Bar, bar_chart
from benchmarks.encoders.dynamic_batching.server import SIZE, WINDOW_MS, DynamicBatchingServer
from benchmarks.encoders.engine_loop import EngineLoop
from benchmarks.encoders.minilm import minilm_checkpoint, minilm_engine
from benchmarks.encoders.peers import SENTENCE_TRANSFORMERS, VLLM, Peer
from benchmarks.encoders.server import EncoderMetrics, embedding_server
from benchmarks.encoders.texts import TextMaker, tokens
from benchmarks.figures import Figure, out_option, report
from build_engines.cpu_precision import find_processor
from build_engines.manifest import Precision
from inflight.deploy.server.server import Server

STATIC_SIZE = 32
DYNAMIC_CALLERS = 64
SORTED_BUDGETS = (512, 1024, 2048)
"""Padded tokens of a batch of the sorted loop; the fastest counts."""
_PLANNED = "planned"
_NAMES = {
    "alone": "batches of one",
    "static": f"static, {STATIC_SIZE} in order of arrival",
    "dynamic": f"Triton's dynamic, up to {SIZE} or {WINDOW_MS} ms",
    _PLANNED: "planned (this server)",
    "sorted": "whole corpus sorted, no server",
    SENTENCE_TRANSFORMERS: "sentence-transformers, OpenVINO",
    VLLM: "vLLM pooling on CPU",
}


@dataclass(frozen=True)
class Way:
    """One way in one round: tokens per second, and computed positions per token, where they are known."""

    tokens_per_second: float
    padding: float | None = None


@click.command(help=__doc__)
@click.option("--texts", default=500, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "int8"]), default="fp32", show_default=True)
@click.option("--peers/--no-peers", default=True, show_default=True)
@click.option("--prepare", is_flag=True, help="Download, install and build only.")
@click.option("--charts", type=click.Path(path_type=Path), help="Directory for the charts.")
@click.option("--draw", is_flag=True, help="Draw the figures of --out, without a measurement.")
@out_option("encoders_batching")
def main(
    texts: int,
    rounds: int,
    precision: Precision,
    peers: bool,
    prepare: bool,
    charts: Path | None,
    draw: bool,
    out: Path,
) -> None:
    if not draw:
        checkpoint, engine = minilm_checkpoint(), minilm_engine(precision)
        same: Precision = "fp32" if precision == "fp32" else "bf16"
        started = [Peer(kind, checkpoint, same) for kind in ((SENTENCE_TRANSFORMERS, VLLM) if peers else ())]
        try:
            measured = [] if prepare else _measure(engine, started, texts, rounds)
        finally:
            for peer in started:
                peer.close()
        if prepare:
            return
        where = f"{find_processor().name}, {find_processor().cores} cores, {datetime.date.today():%d %B %Y}"
        caption = f"MiniLM {precision}, {texts} texts; {where}"
        report(
            out,
            list(_figures(measured, precision)),
            {"caption": caption, "rounds": [_plain(one) for one in measured]},
        )
    if charts is not None:
        details = json.loads(out.read_text())["details"]
        for name, chart in _charts(details["caption"], details["rounds"]).items():
            (charts / name).write_text(chart)
            print(f"Chart: {charts / name}")


def _measure(engine: Path, peers: Sequence[Peer], count: int, rounds: int) -> list[dict[str, Way]]:
    maker, loop = TextMaker(engine), EngineLoop(engine)
    rounds_measured: list[dict[str, Way]] = []
    with (
        embedding_server(engine) as server,
        Client(server.grpc_address) as client,
        DynamicBatchingServer(engine) as dynamic,
    ):
        warm = [text.text for text in maker.log_normal(200)]
        client.embed(warm)
        dynamic.embed(warm, DYNAMIC_CALLERS)
        loop.sorted_by_length(warm, max(SORTED_BUDGETS))
        for number in range(rounds):
            corpus = maker.log_normal(count)
            ways = _ways(loop, dynamic, peers, [text.text for text in corpus], tokens(corpus))
            ways[_PLANNED] = _planned(server, client, [text.text for text in corpus], tokens(corpus))
            turn = number % len(ways)
            measured = {name: ways[name]() for name in (*list(ways)[turn:], *list(ways)[:turn])}
            measured["sorted"] = max((measured[f"sorted {budget}"] for budget in SORTED_BUDGETS), key=_speed)
            rounds_measured.append(measured)
            speeds = ", ".join(f"{name} {_speed(way):.0f}" for name, way in measured.items())
            print(f"round {number + 1}, tokens/s: {speeds}", flush=True)
    return rounds_measured


def _ways(
    loop: EngineLoop, dynamic: DynamicBatchingServer, peers: Sequence[Peer], texts: list[str], total: int
) -> dict[str, Callable[[], Way]]:
    """Return all ways but that of the server."""
    return {
        "alone": lambda: _in_process(loop, total, lambda: loop.in_order(texts, 1)),
        "static": lambda: _in_process(loop, total, lambda: loop.in_order(texts, STATIC_SIZE)),
        "dynamic": lambda: _dynamic(dynamic, texts, total),
        **{f"sorted {budget}": _sorted(loop, texts, total, budget) for budget in SORTED_BUDGETS},
        **{peer.kind: _of_peer(peer, texts, total) for peer in peers},
    }


def _in_process(loop: EngineLoop, total: int, run: Callable[[], Any]) -> Way:
    real, padded = loop.real_tokens, loop.padded_tokens
    seconds = _seconds(run)
    return Way(total / seconds, (loop.padded_tokens - padded) / (loop.real_tokens - real))


def _dynamic(server: DynamicBatchingServer, texts: list[str], total: int) -> Way:
    began = time.perf_counter()
    padded = server.embed(texts, DYNAMIC_CALLERS)
    return Way(total / (time.perf_counter() - began), padded / total)


def _sorted(loop: EngineLoop, texts: list[str], total: int, budget: int) -> Callable[[], Way]:
    return lambda: _in_process(loop, total, lambda: loop.sorted_by_length(texts, budget))


def _planned(server: Server, client: Client, texts: list[str], total: int) -> Callable[[], Way]:
    def run() -> Way:
        before = EncoderMetrics(server)
        seconds = _seconds(lambda: client.embed(texts))
        return Way(total / seconds, EncoderMetrics(server).padding_since(before))

    return run


def _of_peer(peer: Peer, texts: list[str], total: int) -> Callable[[], Way]:
    return lambda: Way(total / peer.seconds(texts))


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _speed(way: Way) -> float:
    return way.tokens_per_second


def _figures(rounds: Sequence[dict[str, Way]], precision: Precision) -> list[Figure]:
    goals = {"static": ">= 1.5", "sorted": ">= 0.95", SENTENCE_TRANSFORMERS: ">= 1.2", VLLM: ">= 1.2"}
    figures = [Figure("padded / real tokens, planned", [one[_PLANNED].padding or 0.0 for one in rounds], "<= 1.1")]
    others = [name for name in _NAMES if name != _PLANNED and name in rounds[0]]
    for name in others:
        ratios = [_speed(one[_PLANNED]) / _speed(one[name]) for one in rounds]
        figures.append(Figure(f"tokens/s, planned / {_NAMES[name]}", ratios, goals.get(name, "")))
    for name in (_PLANNED, *others):
        figures.append(Figure(f"tokens/s, {_NAMES[name]}, {precision}", [_speed(one[name]) for one in rounds]))
        paddings = [padding for one in rounds if (padding := one[name].padding) is not None]
        if name != _PLANNED and paddings:
            figures.append(Figure(f"padded / real tokens, {_NAMES[name]}", paddings))
    return figures


def _plain(ways: dict[str, Way]) -> dict[str, Any]:
    return {name: vars(way) for name, way in ways.items()}


def _charts(caption: str, rounds: Sequence[dict[str, dict[str, float | None]]]) -> dict[str, str]:
    """Return the charts of the medians, by file name."""

    def bars(field: str, form: str) -> list[Bar]:
        values = {name: [one[name][field] for one in rounds if name in one] for name in _NAMES}
        medians = {name: statistics.median(filter(None, numbers)) for name, numbers in values.items() if any(numbers)}
        return [Bar(_NAMES[name], value, format(value, form), name == _PLANNED) for name, value in medians.items()]

    return {
        "batching-padding.svg": bar_chart("Padded tokens for each real one", caption, bars("padding", ".2f")),
        "batching-speed.svg": bar_chart("Tokens per second", caption, bars("tokens_per_second", ",.0f")),
    }


if __name__ == "__main__":
    main()

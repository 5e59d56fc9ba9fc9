"""Processor time per streamed token, by process, with each of several stream intervals.

One server for each interval runs the fake engine: known tokens at a known rate, so that neither the model nor the
machine limits them. Runs take turns, and each figure is the median of all rounds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click
from inflight_client import AsyncClient
from rich.console import Console
from rich.table import Table

from benchmarks.client_cost import PROMPT, paced_engine
from benchmarks.end_to_end import by_name, processor_seconds
from benchmarks.fixtures import bench_engine
from inflight.deploy.server.server import Server

Costs = dict[str, float]
"""Microseconds per token, by process."""


@click.command(help=__doc__)
@click.option("--like", default="tiny-llama", show_default=True, help="Model whose tokenizer is used.")
@click.option("--model", default="ensemble", show_default=True, help="Model of the server that is asked.")
@click.option("--intervals", default="1,4,8", show_default=True, help="Tokens per response, a list.")
@click.option("--streams", default=64, show_default=True)
@click.option("--max-tokens", default=128, show_default=True)
@click.option("--step-ms", default=40.0, show_default=True, help="Milliseconds between two tokens of a stream.")
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path(".cache/bench/stream_interval.json"), show_default=True
)
def main(
    like: str, model: str, intervals: str, streams: int, max_tokens: int, step_ms: float, rounds: int, out: Path
) -> None:
    engine = bench_engine(like, "fp32")
    options = paced_engine(step_ms / 1e3, max_tokens)
    found: defaultdict[int, list[Costs]] = defaultdict(list)
    with ExitStack() as stack:
        servers = {
            number: stack.enter_context(Server(engine, replace(options, stream_interval=number)))
            for number in map(int, intervals.split(","))
        }
        for turn in range(-1, rounds):
            for number, server in servers.items():
                costs = _costs(server, model, streams, max_tokens)
                if turn >= 0:  # the first round is a warm-up
                    found[number].append(costs)
    medians = {number: _medians(runs) for number, runs in found.items()}
    table = Table(title=f"{model}, {streams} streams of {max_tokens} tokens: processor time per token, microseconds")
    names = list(next(iter(medians.values())))
    for column in ("interval", *names):
        table.add_column(column, justify="right")
    for number, costs in medians.items():
        table.add_row(str(number), *(f"{costs[name]:.0f}" for name in names))
    Console().print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2))


def _costs(server: Server, model: str, streams: int, max_tokens: int) -> Costs:
    before, own = by_name(server, processor_seconds), time.process_time()
    asyncio.run(_stream_all(server.grpc_address, model, streams, max_tokens))
    spent = {"client": time.process_time() - own}
    spent |= {name: value - before.get(name, 0.0) for name, value in by_name(server, processor_seconds).items()}
    costs = {name: seconds / (streams * max_tokens) * 1e6 for name, seconds in sorted(spent.items())}
    return {**costs, "together": sum(costs.values())}


def _medians(runs: list[Costs]) -> Costs:
    return {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}


async def _stream_all(address: str, model: str, streams: int, max_tokens: int) -> None:
    async with AsyncClient(address, model=model) as client:

        async def one() -> None:
            async for _ in client.stream(PROMPT, max_tokens=max_tokens):
                pass

        await asyncio.gather(*(one() for _ in range(streams)))


if __name__ == "__main__":
    main()

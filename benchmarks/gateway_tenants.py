"""Fairness of the gateway: by how much one tenant's flood moves another's time to the first token.

The engine is the fake one, whose steps take a known time. In each pair of windows, a tenant with a few closed loops is
alone in one, and beside a tenant with many in the other. The loops of each tenant are in a process of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import click

from benchmarks.client_cost import PROMPT, paced_engine
from benchmarks.completion_client import GREEDY, CompletionClient
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine
from benchmarks.gateway_cost import gateway
from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey


@click.command(help=__doc__)
@click.option("--loops", default=4, show_default=True, help="Of the tenant that is measured.")
@click.option("--flood", default=32, show_default=True, help="Loops of the other one.")
@click.option("--sequences", default=16, show_default=True, help="Answers that the engine computes at a time.")
@click.option("--max-tokens", default=32, show_default=True)
@click.option("--step-ms", default=20.0, show_default=True)
@click.option("--pairs", default=5, show_default=True)
@click.option("--seconds", default=8.0, show_default=True, help="Length of a window.")
@out_option("gateway_tenants")
def main(
    loops: int, flood: int, sequences: int, max_tokens: int, step_ms: float, pairs: int, seconds: float, out: Path
) -> None:
    alone: list[float] = []
    beside: list[float] = []
    engine = bench_engine("tiny-llama", "fp32")
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(engine, replace(paced_engine(step_ms / 1e3, max_tokens), max_num_sequences=sequences)) as server,
    ):
        file = Path(folder) / "keys.json"
        keys = {name: add_key(file, ApiKey.new(name)) for name in ("few", "many")}
        with gateway(server, None, key_file=str(file), state_dir=folder) as front:
            few = Loops(CompletionClient(front.port, front.model, keys["few"]), loops, max_tokens)
            many = Loops(CompletionClient(front.port, front.model, keys["many"]), flood, max_tokens)
            few.run(seconds / 4)
            for pair in range(pairs):
                order = ("alone", "beside") if pair % 2 == 0 else ("beside", "alone")
                for kind in order:
                    if kind == "alone":
                        alone += few.run(seconds)
                    else:
                        beside += few.run(seconds, many)
            few.close()
            many.close()
    figures = [
        Figure("p99 time to first token beside a flood / alone", [_p99(beside) / _p99(alone)], "<= 1.1"),
        Figure("median beside a flood / alone", [statistics.median(beside) / statistics.median(alone)]),
    ]
    details = {"alone_ms": _summary(alone), "beside_ms": _summary(beside)}
    print(details)
    report(out, figures, details)


class Loops:
    """Closed loops in a process of their own."""

    def __init__(self, client: CompletionClient, count: int, max_tokens: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, client, count, max_tokens), daemon=True)
        self._process.start()

    def run(self, seconds: float, beside: Loops | None = None) -> list[float]:
        """Run for so long, other loops beside it; return the times to the first token."""
        if beside is not None:
            beside._pipe.send(seconds + 1)
            time.sleep(1)  # the flood is there
        self._pipe.send(seconds)
        firsts: list[float] = self._pipe.recv()
        if beside is not None:
            beside._pipe.recv()
        return firsts

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, client: CompletionClient, count: int, max_tokens: int) -> None:
    async def window(seconds: float) -> list[float]:
        until, firsts = time.monotonic() + seconds, []

        async def loop() -> None:
            while time.monotonic() < until:
                firsts.append((await client.stream(PROMPT, max_tokens, GREEDY))[0])

        await asyncio.gather(*(loop() for _ in range(count)))
        return firsts

    while True:
        pipe.send(asyncio.run(window(pipe.recv())))


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _summary(values: list[float]) -> dict[str, float]:
    return {"count": len(values), "p50": statistics.median(values) * 1e3, "p99": _p99(values) * 1e3}


if __name__ == "__main__":
    main()

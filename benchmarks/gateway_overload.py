"""Overload of the gateway: twice the requests that it can answer, from clients that obey Retry-After once.

First it finds the peak: answers per second with as many closed-loop clients as there are places. Then requests arrive
at twice that rate. A refused client comes back after Retry-After, once. Goodput counts whole answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from benchmarks.client_cost import PROMPT
from benchmarks.completion_client import send
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine
from benchmarks.gateway_cost import gateway
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server


@dataclass
class Overload:
    peak: float = 0.0
    """Answers per second without overload."""
    seconds: float = 0.0
    answered: int = 0
    refused: int = 0
    refused_ms: list[float] = field(default_factory=list)
    came_back: int = 0
    admitted_then: int = 0
    other: int = 0

    @property
    def goodput(self) -> float:
        return self.answered / self.seconds / self.peak


@click.command(help=__doc__)
@click.option("--model", default="tiny-llama", show_default=True)
@click.option("--minutes", default=15.0, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--places", default=32, show_default=True, help="Answers in flight that the gateway admits.")
@out_option("gateway_overload")
def main(model: str, minutes: float, max_tokens: int, places: int, out: Path) -> None:
    with (
        Server(bench_engine(model, "int8"), DeploymentOptions(max_queue_size=4 * places)) as server,
        gateway(server, max_in_flight=places) as front,
    ):
        overload = asyncio.run(_measure(front.port, server.model_name, places, max_tokens, minutes * 60))
    figures = [
        Figure("goodput / peak", [overload.goodput], ">= 0.9"),
        Figure("refused after, 99th percentile", [_p99(overload.refused_ms)], "<= 20", "ms"),
        Figure("admitted after Retry-After, share", [overload.admitted_then / max(1, overload.came_back)], ">= 0.9"),
        Figure("requests neither answered nor refused", [overload.other], "<= 0"),
    ]
    report(out, figures, asdict(overload))


async def _measure(port: int, model: str, places: int, max_tokens: int, seconds: float) -> Overload:
    overload, ask = Overload(), _Client(port, model, max_tokens)
    until = time.monotonic() + min(20.0, seconds / 4)

    async def closed() -> int:
        answers = 0
        while time.monotonic() < until:
            answers += (await ask.send(ask.body()))[0] == 200
        return answers

    await asyncio.gather(*(ask.send(ask.body()) for _ in range(places)))
    began = time.monotonic()
    answers = sum(await asyncio.gather(*(closed() for _ in range(places))))
    overload.peak = answers / (time.monotonic() - began)
    tasks = set()
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        task = asyncio.create_task(_visit(ask, overload, began + seconds))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due = random.expovariate(2 * overload.peak)
        await asyncio.sleep(max(0.0, due - (time.monotonic() - began - elapsed)))
    overload.seconds = time.monotonic() - began
    await asyncio.gather(*tasks, return_exceptions=True)
    return overload


async def _visit(ask: _Client, overload: Overload, end: float) -> None:
    began, body = time.monotonic(), ask.body()
    status, wait = await ask.send(body)
    if status == 429:
        overload.refused += 1
        overload.refused_ms.append((time.monotonic() - began) * 1e3)
        if time.monotonic() + wait > end:
            return
        await asyncio.sleep(wait)
        overload.came_back += 1
        status, _ = await ask.send(body)
        overload.admitted_then += status == 200
    if status == 200 and time.monotonic() < end:
        overload.answered += 1
    overload.other += status not in (200, 429)


class _Client:
    """Sends requests whose bodies differ, each on its own connection."""

    def __init__(self, port: int, model: str, max_tokens: int) -> None:
        self._port, self._model, self._max_tokens = port, model, max_tokens
        self._count = 0

    def body(self) -> bytes:
        self._count += 1
        values = {
            "model": self._model, "prompt": PROMPT, "max_tokens": self._max_tokens, "ignore_eos": True,
            "seed": self._count,
        }  # fmt: skip
        return json.dumps(values).encode()

    async def send(self, body: bytes) -> tuple[int, float]:
        """Return the status, and the seconds of Retry-After."""
        status, head, _ = await send(self._port, "POST", "/v1/completions", body)
        waits = [float(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("retry-after-ms:")]
        return status, waits[0] / 1e3 if waits else 0.0


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()

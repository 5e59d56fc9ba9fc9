"""`make bench`: what the gateway costs, compared with AsyncClient alone and with gRPC without a gateway.

Processor time per streamed token is measured with the fake engine, which emits known tokens at a known rate. Tokens per
second and the time to the first token are measured with a compiled model. All are ratios or differences of one run,
taken in pairs whose order alternates.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil
from inflight_client import AsyncClient
from inflight_client.sampling import Sampling

from benchmarks.client_cost import PROMPT, paced_engine
from benchmarks.completion_client import CompletionClient, send
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine
from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings


@click.command(help=__doc__)
@click.option("--like", default="tiny-llama", show_default=True)
@click.option("--model", default="qwen2.5-0.5b", show_default=True, help="Compiled model of the speeds.")
@click.option("--streams", default=64, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--pairs", default=7, show_default=True)
@click.option("--step-ms", default=40.0, show_default=True)
@click.option("--idle", default=1000, show_default=True, help="Streams that wait for their first token.")
@out_option("gateway_cost")
def main(
    like: str, model: str, streams: int, max_tokens: int, pairs: int, step_ms: float, idle: int, out: Path
) -> None:
    with (
        Server(bench_engine(like, "fp32"), paced_engine(step_ms / 1e3, max_tokens)) as server,
        gateway(server) as front,
    ):
        costs = []
        for pair in range(-1, pairs):
            alone = asyncio.run(_client_us(server.grpc_address, streams, max_tokens))
            through = asyncio.run(front.us_per_token(streams, max_tokens))
            if pair >= 0:
                costs.append((alone, through))
                print(f"pair {pair + 1}: AsyncClient {alone:.1f} us/token, gateway {through:.1f}")
        idle_mib = asyncio.run(front.idle_mib(idle))
    ratios = [through / alone for alone, through in costs]
    figures = [Figure("processor time per token, gateway / AsyncClient", ratios, "<= 1.3")]
    with Server(bench_engine(model, "bf16")) as server, gateway(server) as front:
        for count in (1, 8, streams):
            measured = [_pair(server.grpc_address, front, count, max_tokens, pair) for pair in range(-1, pairs)][1:]
            speeds, later_ms = zip(*measured, strict=True)
            figures.append(Figure(f"tokens/s at {count}, gateway / gRPC", speeds, ">= 0.97"))
            if count == 1:
                figures.append(Figure("time to first token, later by", later_ms, "<= 5", "ms"))
            print(f"{count} streams: ratios {', '.join(f'{each:.3f}' for each in speeds)}")
    figures.append(Figure(f"memory of {idle} idle streams", [idle_mib], "<= 100", "MiB"))
    report(out, figures, {"client_and_gateway_us_per_token": costs})


def _pair(address: str, front: Front, count: int, max_tokens: int, number: int) -> tuple[float, float]:
    """Return the ratio of tokens per second, and how many milliseconds later the first token is."""
    runs = [
        lambda: asyncio.run(_grpc(address, count, max_tokens)),
        lambda: asyncio.run(front.client.speed([PROMPT] * count, max_tokens)),
    ]
    measured = {place: runs[place]() for place in ((0, 1) if number % 2 else (1, 0))}
    return measured[1][0] / measured[0][0], (measured[1][1] - measured[0][1]) * 1e3


class Front:
    """A running gateway and its process."""

    def __init__(self, port: int, model: str) -> None:
        self.port, self.model = port, model
        self.client = CompletionClient(port, model)
        self.process = next(
            each
            for each in psutil.Process().children(recursive=True)
            if "inflight.gateway.server" in " ".join(each.cmdline())
        )

    async def us_per_token(self, streams: int, max_tokens: int) -> float:
        before = self.process.cpu_times()
        await self.client.speed([PROMPT] * streams, max_tokens)
        after = self.process.cpu_times()
        return (after.user + after.system - before.user - before.system) / (streams * max_tokens) * 1e6

    async def idle_mib(self, count: int) -> float:
        before = self.process.memory_info().rss
        opened = [await self.client.start(PROMPT, 4096) for _ in range(count)]
        await asyncio.sleep(15)  # past the first keep-alive
        used = (self.process.memory_info().rss - before) / 2**20
        for _, writer in opened:
            writer.close()
        return used


@contextmanager
def gateway(server: Server, max_in_flight: int | None = 2000, **settings: Any) -> Any:
    address = f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics"
    chosen = GatewaySettings((address,), port=0, max_in_flight=max_in_flight, **settings)
    processes = GatewayProcesses(chosen, print)
    processes.start()
    try:
        while asyncio.run(send(processes.port, "GET", "/ready"))[0] != 200:
            time.sleep(0.1)
        yield Front(processes.port, server.manifest.name)
    finally:
        processes.stop()


async def _client_us(address: str, streams: int, max_tokens: int) -> float:
    started = time.process_time()
    await _grpc(address, streams, max_tokens)
    return (time.process_time() - started) / (streams * max_tokens) * 1e6


async def _grpc(address: str, streams: int, max_tokens: int) -> tuple[float, float]:
    sampling = Sampling(temperature=0, end_id=-1)
    async with AsyncClient(address) as client:

        async def one() -> float:
            began, first = time.perf_counter(), 0.0
            async for _ in client.stream(PROMPT, max_tokens=max_tokens, sampling=sampling):
                first = first or time.perf_counter() - began
            return first

        began = time.perf_counter()
        firsts = await asyncio.gather(*(one() for _ in range(streams)))
        return streams * max_tokens / (time.perf_counter() - began), statistics.median(firsts)


if __name__ == "__main__":
    main()

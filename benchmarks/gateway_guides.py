"""What hostile schemas and patterns cost: how long each is answered, and what others notice meanwhile.

Streams of other requests run all the time. The gaps between their tokens are compared with those of a time without
hostile requests, before and after.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
from inflight_client import AsyncClient
from inflight_client.sampling import Sampling
from rich.console import Console
from rich.table import Table

from benchmarks.client_cost import PROMPT
from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine
from benchmarks.gateway_cost import gateway
from inflight.deploy.server.server import Server
from tests.fixtures.hostile_guides import HOSTILE_PATTERNS, HOSTILE_SCHEMAS

_QUIET_SECONDS = 15.0


@click.command(help=__doc__)
@click.option("--model", default="qwen2.5-0.5b", show_default=True)
@click.option("--streams", default=4, show_default=True, help="Streams of others.")
@click.option("--out", type=click.Path(path_type=Path), default=BENCH_DIRECTORY / "gateway_guides.json")
def main(model: str, streams: int, out: Path) -> None:
    with Server(bench_engine(model, "bf16")) as server, gateway(server) as front:
        before = server.pid
        found = asyncio.run(_measure(server.grpc_address, front.port, front.model, streams))
        same = before == server.pid and not server.restarts
    table = Table("guide", "status", "seconds")
    for guide, status, seconds in found["answers"]:
        table.add_row(guide, str(status), f"{seconds:.2f}")
    console = Console()
    console.print(table)
    console.print(f"slowest {max(each[2] for each in found['answers']):.2f} s (goal 2); server unchanged: {same}")
    console.print(
        f"p99 gap of others: {found['gap_with_ms']:.1f} ms, without {found['gap_without_ms']:.1f} ms (goal 2x)"
    )
    out.write_text(json.dumps(found, indent=2))


async def _measure(address: str, port: int, model: str, streams: int) -> dict[str, Any]:
    gaps: list[tuple[float, float]] = []
    """When, and how long."""
    async with AsyncClient(address) as client:
        others = [asyncio.create_task(_stream(client, gaps)) for _ in range(streams)]
        answers, hostile = [], []
        try:
            await asyncio.sleep(_QUIET_SECONDS)
            hostile.append(time.perf_counter())
            for guide in [*({"json_schema": each} for each in HOSTILE_SCHEMAS), *HOSTILE_PATTERNS]:
                began = time.perf_counter()
                status = await _ask(port, model, guide)
                answers.append((json.dumps(guide)[:60], status, time.perf_counter() - began))
            hostile.append(time.perf_counter())
            await asyncio.sleep(_QUIET_SECONDS)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
    first, last = hostile
    inside = [gap for moment, gap in gaps if first <= moment <= last]
    outside = [gap for moment, gap in gaps if not first <= moment <= last]
    return {"answers": answers, "gap_with_ms": _p99(inside), "gap_without_ms": _p99(outside)}


async def _stream(client: AsyncClient, gaps: list[tuple[float, float]]) -> None:
    while True:
        last = 0.0
        async for _ in client.stream(PROMPT, max_tokens=200, sampling=Sampling(temperature=0, end_id=-1)):
            now = time.perf_counter()
            if last:
                gaps.append((now, now - last))
            last = now


async def _ask(port: int, model: str, guide: Any) -> int:
    form: dict[str, Any] = {"type": "regex", "regex": guide}
    if isinstance(guide, dict):
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": guide["json_schema"]}}
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "tea"}], "max_tokens": 16, "response_format": form}
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] * 1e3


if __name__ == "__main__":
    main()

"""`make bench`: the cost of AsyncClient compared with equivalent bare tritonclient code.

Both stream the same answers at once from the same server, whose engine is the fake one: known tokens at a known rate,
so that neither the engine nor the server is measured. They run in this process one after the other, in pairs whose
order alternates; the result is the median of the pairs' ratios of processor time per token.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from inflight_client import AsyncClient
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine, fake_engine
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server

PROMPT = "tell me about tea"
GOAL = "<= 1.05"
"""Of the ratio of the client's cost to that of the bare code."""

Streams = Callable[[str, int, int], Coroutine[Any, Any, list[str]]]
"""Streams this many answers of this many tokens from an address, and returns their texts."""


@dataclass(frozen=True)
class ClientCost:
    """Microseconds of processor time per token, the medians of all pairs, and each pair's ratio."""

    streams: int
    max_tokens: int
    client_us: float
    bare_us: float
    ratios: list[float]


@click.command(help=__doc__)
@click.option("--like", default="tiny-llama", show_default=True, help="Model whose tokenizer is used.")
@click.option("--streams", default=64, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--pairs", default=15, show_default=True)
@click.option("--step-ms", default=40.0, show_default=True, help="Milliseconds between two tokens of a stream.")
@out_option("client_cost")
def main(like: str, streams: int, max_tokens: int, pairs: int, step_ms: float, out: Path) -> None:
    with Server(bench_engine(like, "fp32"), paced_engine(step_ms / 1e3, max_tokens)) as server:
        cost = measure(server.grpc_address, streams, max_tokens, pairs, print)
    name = f"processor time of the client's process at {streams} streams, AsyncClient / bare tritonclient"
    report(out, [Figure(name, cost.ratios, GOAL)], asdict(cost))


def paced_engine(step_seconds: float, max_tokens: int) -> DeploymentOptions:
    """Return options of the fake engine with room for all streams."""
    return fake_engine(step_seconds, 512, 256 * (max_tokens + 64))


def measure(address: str, streams: int, max_tokens: int, pairs: int, on_message: Callable[[str], None]) -> ClientCost:
    """Compare both in this many pairs, after a warm-up pair that does not count."""
    spent: dict[str, list[float]] = {"client": [], "bare": []}
    kinds: dict[str, Streams] = {"client": _through_client, "bare": _bare}
    for pair in range(-1, pairs):
        order = ("client", "bare") if pair % 2 == 0 else ("bare", "client")
        costs = {kind: _cost(kinds[kind], address, streams, max_tokens) for kind in order}
        if costs["client"][1] != costs["bare"][1]:
            raise RuntimeError("the client and the bare code received different texts")
        if pair < 0:
            continue
        for kind, (cost, _) in costs.items():
            spent[kind].append(cost)
        client, bare = spent["client"][-1], spent["bare"][-1]
        on_message(f"pair {pair + 1}: AsyncClient {client:6.1f} us/token, bare {bare:6.1f}, ratio {client / bare:.3f}")
    ratios = [client / bare for client, bare in zip(spent["client"], spent["bare"], strict=True)]
    return ClientCost(streams, max_tokens, statistics.median(spent["client"]), statistics.median(spent["bare"]), ratios)


def _cost(run: Streams, address: str, streams: int, max_tokens: int) -> tuple[float, list[str]]:
    """Return the microseconds of this process per token, and the texts."""
    gc.collect()
    started = time.process_time()
    texts = asyncio.run(run(address, streams, max_tokens))
    return (time.process_time() - started) / (streams * max_tokens) * 1e6, texts


async def _through_client(address: str, streams: int, max_tokens: int) -> list[str]:
    async with AsyncClient(address) as client:

        async def one() -> str:
            parts = []
            async for delta in client.stream(PROMPT, max_tokens=max_tokens):
                parts.append(delta.text)
            return "".join(parts)

        return await asyncio.gather(*(one() for _ in range(streams)))


async def _bare(address: str, streams: int, max_tokens: int) -> list[str]:
    """Stream as in tritonclient's documentation."""
    async with InferenceServerClient(address) as client:

        async def one(number: int) -> str:
            async def requests() -> AsyncIterator[dict[str, Any]]:
                yield {"model_name": "ensemble", "inputs": _inputs(max_tokens), "request_id": str(number)}

            parts = []
            async for result, error in client.stream_infer(requests()):
                if error is not None:
                    raise error
                parts.append(result.as_numpy("text_output").flat[0].decode())
            return "".join(parts)

        return await asyncio.gather(*(one(number) for number in range(streams)))


def _inputs(max_tokens: int) -> list[InferInput]:
    values = {
        "text_input": ("BYTES", np.array([[PROMPT.encode()]], dtype=np.object_)),
        "max_tokens": ("INT32", np.array([[max_tokens]], dtype=np.int32)),
        "stream": ("BOOL", np.array([[True]])),
        "exclude_input_in_output": ("BOOL", np.array([[True]])),
    }
    inputs = []
    for name, (datatype, value) in values.items():
        tensor = InferInput(name, list(value.shape), datatype)
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


if __name__ == "__main__":
    main()

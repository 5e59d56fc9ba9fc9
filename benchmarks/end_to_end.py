"""`make bench`: end to end (text in, ensemble, gRPC streaming, client in this process) against the engine alone.

Runs are interleaved, in pairs whose order alternates, on prompts that neither has seen. The result is the median of the
pairs' ratios, since the machine's speed drifts and both halves of a pair drift together.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from inflight_client import AsyncClient, Sampling
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.completion_client import TRAFFIC
from benchmarks.engine_alone import AloneRun, EngineAlone
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine
from benchmarks.prompts import Prompts
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import SamplingConfig

KV_CACHE_TOKENS = 32768


@dataclass(frozen=True)
class PairWorkload:
    """The number of pairs, and the lengths of their requests."""

    pairs: int
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True)
class EndToEndRun:
    """One end-to-end run: tokens per second, gaps between chunks in seconds, processor seconds by name."""

    tokens_per_second: float
    gaps: list[float]
    processor_seconds: dict[str, float]


@dataclass(frozen=True)
class EndToEndComparison:
    """The pairs of one engine at one concurrency, with one kind of requests."""

    engine: str
    kind: str
    in_flight: int
    pairs: list[tuple[EndToEndRun, AloneRun]]
    max_tokens: int

    def figures(self) -> list[Figure]:
        speeds = [whole.tokens_per_second / alone.tokens_per_second for whole, alone in self.pairs]
        gaps = [_p99(whole.gaps) / _p99(alone.steps) for whole, alone in self.pairs]
        at = f"{self.engine}, {self.kind}, {self.in_flight} in flight"
        return [
            Figure(f"tokens/s, {at}, end to end / engine alone", speeds, ">= 0.98"),
            Figure(f"p99 gap between tokens / p99 step of the engine alone, {at}", gaps, "<= 1.25"),
        ]

    def details(self) -> dict[str, Any]:
        """Return medians; times in milliseconds, and the processor time of each token in microseconds."""
        wholes, alones = zip(*self.pairs, strict=True)
        names = sorted({name for whole in wholes for name in whole.processor_seconds})
        tokens = self.in_flight * self.max_tokens
        return {
            "engine": f"{self.engine}, {self.kind}",
            "in_flight": self.in_flight,
            "end_to_end_tokens_per_second": statistics.median(whole.tokens_per_second for whole in wholes),
            "alone_tokens_per_second": statistics.median(alone.tokens_per_second for alone in alones),
            "p99_gap_ms": statistics.median(_p99(whole.gaps) for whole in wholes) * 1e3,
            "p99_step_ms": statistics.median(_p99(alone.steps) for alone in alones) * 1e3,
            "processor_us_per_token": {
                name: statistics.median(whole.processor_seconds.get(name, 0.0) for whole in wholes) / tokens * 1e6
                for name in names
            },
        }


@click.command(help=__doc__)
@click.option("--like", default="qwen2.5-0.5b", show_default=True, help="Shape of the synthetic checkpoint.")
@click.option("--precision", default="int8,bf16", show_default=True, help="Weights of the engines, a list.")
@click.option("--in-flight", default="1,64", show_default=True, help="Requests in flight, a list.")
@click.option("--pairs", default=5, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--max-num-tokens", default=96, show_default=True, help="Maximum tokens per step, on both sides.")
@click.option("--stream-interval", default=1, show_default=True, help="Tokens per response of a stream.")
@out_option("end_to_end")
def main(
    like: str, precision: str, in_flight: str, max_num_tokens: int, stream_interval: int, out: Path, **workload: int
) -> None:
    deployment = DeploymentOptions(
        kv_cache_tokens=KV_CACHE_TOKENS, max_num_tokens=max_num_tokens, stream_interval=stream_interval
    )
    counts = [int(count) for count in in_flight.split(",")]
    comparisons: list[EndToEndComparison] = []
    resident = {}
    for each in precision.split(","):
        engine = bench_engine(like, each)  # type: ignore[arg-type]  # building refuses others
        compared, resident[each] = _measure(engine, each, deployment, counts, PairWorkload(**workload))
        comparisons += compared
    details = {
        "like": like,
        "stream_interval": stream_interval,
        "resident_mib": resident,
        "comparisons": [one.details() for one in comparisons],
    }
    _show_costs([one.details() for one in comparisons], resident)
    report(out, [figure for one in comparisons for figure in one.figures()], details)


def _measure(
    engine: Path, name: str, deployment: DeploymentOptions, counts: list[int], workload: PairWorkload
) -> tuple[list[EndToEndComparison], dict[str, float]]:
    """Return the comparisons at each concurrency, and the resident MiB of the server's processes at the end."""
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
    assert deployment.max_num_tokens is not None
    alone = EngineAlone(
        EngineOptions("openvino", str(engine), KV_CACHE_TOKENS, max_num_tokens=deployment.max_num_tokens)
    )
    with Server(engine, deployment) as server:
        comparisons = [
            _compare(server, alone, prompts, name, kind, count, workload) for count, kind in product(counts, TRAFFIC)
        ]
        resident = {role: size / 2**20 for role, size in by_name(server, lambda p: float(p.memory_info().rss)).items()}
    alone.close()
    return comparisons, resident


def _compare(
    server: Server, alone: EngineAlone, prompts: Prompts, name: str, kind: str, count: int, workload: PairWorkload
) -> EndToEndComparison:
    pairs: list[tuple[EndToEndRun, AloneRun]] = []
    sampling, config = Sampling(**TRAFFIC[kind], end_id=-1), SamplingConfig(**TRAFFIC[kind])
    for pair in range(-1, workload.pairs):
        batch = prompts.next_prompts(count, workload.prompt_tokens)
        for half in ("whole", "alone") if pair % 2 == 0 else ("alone", "whole"):
            if half == "whole":
                end_to_end = _run_end_to_end(server, [text for text, _ in batch], workload.max_tokens, sampling)
            else:
                bare = alone.run([ids for _, ids in batch], workload.max_tokens, {"sampling": config})
        if pair < 0:
            continue  # the first pair is a warm-up for both
        pairs.append((end_to_end, bare))
        print(
            f"{name}, {kind}, {count:3} in flight, pair {pair + 1}: end to end"
            f" {end_to_end.tokens_per_second:6.1f} tokens/s, engine alone {bare.tokens_per_second:6.1f}",
            flush=True,
        )
    return EndToEndComparison(name, kind, count, pairs, workload.max_tokens)


def _p99(values: list[float]) -> float:
    return float(np.percentile(values, 99))


def _run_end_to_end(server: Server, texts: list[str], max_tokens: int, sampling: Sampling) -> EndToEndRun:
    before = by_name(server, processor_seconds)
    client_before = time.process_time()
    seconds, tokens, gaps = asyncio.run(_stream_all(server.grpc_address, texts, max_tokens, sampling))
    spent = {name: value - before.get(name, 0.0) for name, value in by_name(server, processor_seconds).items()}
    spent["client"] = time.process_time() - client_before
    return EndToEndRun(tokens / seconds, gaps, spent)


async def _stream_all(
    address: str, texts: list[str], max_tokens: int, sampling: Sampling
) -> tuple[float, int, list[float]]:
    async with AsyncClient(address) as client:
        await client.deployment()  # connects: an application keeps its client

        async def one(text: str) -> tuple[int, list[float]]:
            times = []
            tokens = 0
            async for delta in client.stream(text, max_tokens=max_tokens, sampling=sampling):
                times.append(time.perf_counter())
                tokens = delta.output_tokens or 0
            return tokens, times

        started = time.perf_counter()
        answers = await asyncio.gather(*(one(text) for text in texts))
        seconds = time.perf_counter() - started
    gaps = [gap for _, times in answers for gap in np.diff(times).tolist()]
    return seconds, sum(tokens for tokens, _ in answers), gaps


def processor_seconds(process: psutil.Process) -> float:
    """Return the processor time that a process has used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def by_name(server: Server, measure: object) -> dict[str, float]:
    """Return a measure of each of the server's processes, by the role of the process."""
    assert callable(measure)
    root = psutil.Process(server.pid)
    sizes: dict[str, float] = {}
    for process in [root, *root.children(recursive=True)]:
        sizes[_name(process)] = sizes.get(_name(process), 0.0) + measure(process)
    return sizes


def _name(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    for part in (
        "preprocessing",
        "postprocessing",
        "inflight.runtime.engine.worker",
        "tensorrt_llm",
    ):
        if part in line.rpartition("/")[2] or f"/{part}/1/" in line:
            return {"inflight.runtime.engine.worker": "engine", "tensorrt_llm": "tensorrt_llm stub"}.get(part, part)
    return "tritonserver"


def _show_costs(comparisons: list[dict[str, Any]], resident: dict[str, dict[str, float]]) -> None:
    names = list(comparisons[0]["processor_us_per_token"])
    table = Table("engine", "in flight", *names, title="Processor time per token, microseconds")
    for one in comparisons:
        costs = (f"{one['processor_us_per_token'].get(name, 0.0):.0f}" for name in names)
        table.add_row(one["engine"], str(one["in_flight"]), *costs)
    Console().print(table)
    for engine, sizes in resident.items():
        parts = ", ".join(f"{name} {size:.0f} MiB" for name, size in sorted(sizes.items(), key=lambda item: -item[1]))
        print(f"Resident memory, {engine}: {parts}; together {sum(sizes.values()):.0f} MiB.")


if __name__ == "__main__":
    main()

"""`make bench`: end to end (text in, ensemble, gRPC streaming, client in this process) against the engine alone.

Runs are interleaved, in pairs whose order alternates, on prompts that neither has seen. The result is the median of the
pairs' ratios, since the machine's speed drifts and both halves of a pair drift together.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import psutil
from inflight_client import AsyncClient
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.engine_alone import AloneRun, EngineAlone
from benchmarks.fixtures import bench_engine
from benchmarks.prompts import Prompts
from build_engines.manifest import Precision
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.runtime.engine.interface import EngineOptions

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
    """The result of the pairs at one concurrency; times in milliseconds."""

    in_flight: int
    end_to_end_tokens_per_second: float
    alone_tokens_per_second: float
    ratio: float
    ratios: list[float]
    p99_gap_ms: float
    p99_step_ms: float
    gap_ratio: float
    processor_us_per_token: dict[str, float]


@click.command(help=__doc__)
@click.option("--like", default="qwen2.5-0.5b", show_default=True, help="Shape of the synthetic checkpoint.")
@click.option("--precision", default="bf16", show_default=True)
@click.option("--in-flight", default="1,8,32,64", show_default=True, help="Requests in flight, a list.")
@click.option("--pairs", default=5, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--max-num-tokens", default=96, show_default=True, help="Maximum tokens per step, on both sides.")
@click.option("--stream-interval", default=1, show_default=True, help="Tokens per response of a stream.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(".cache/bench/whole_way.json"), show_default=True)
def main(
    like: str,
    precision: Precision,
    in_flight: str,
    max_num_tokens: int,
    stream_interval: int,
    out: Path,
    **workload: int,
) -> None:
    console = Console()
    engine = bench_engine(like, precision)
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
    options = EngineOptions("openvino", str(engine), KV_CACHE_TOKENS, max_num_tokens=max_num_tokens)
    deployment = DeploymentOptions(
        kv_cache_tokens=KV_CACHE_TOKENS, max_num_tokens=max_num_tokens, stream_interval=stream_interval
    )
    alone = EngineAlone(options)
    with Server(engine, deployment) as server:
        comparisons = []
        for count in map(int, in_flight.split(",")):
            comparisons.append(_compare(server, alone, prompts, count, PairWorkload(**workload), console))
        resident = {name: size / 2**20 for name, size in by_name(server, lambda p: float(p.memory_info().rss)).items()}
    alone.close()
    _show(console, like, comparisons, resident)
    out.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "like": like,
        "stream_interval": stream_interval,
        "resident_mib": resident,
        "comparisons": [asdict(one) for one in comparisons],
    }
    out.write_text(json.dumps(report, indent=2))
    console.print(f"All figures: {out}")


def _compare(
    server: Server,
    alone: EngineAlone,
    prompts: Prompts,
    count: int,
    workload: PairWorkload,
    console: Console,
) -> EndToEndComparison:
    wholes: list[EndToEndRun] = []
    alones: list[AloneRun] = []
    for pair in range(-1, workload.pairs):
        batch = prompts.next_prompts(count, workload.prompt_tokens)
        for half in ("whole", "alone") if pair % 2 == 0 else ("alone", "whole"):
            if half == "whole":
                end_to_end = _run_end_to_end(server, [text for text, _ in batch], workload.max_tokens)
            else:
                bare = alone.run([ids for _, ids in batch], workload.max_tokens)
        if pair < 0:
            continue  # the first pair is a warm-up for both
        wholes.append(end_to_end)
        alones.append(bare)
        ratio = end_to_end.tokens_per_second / bare.tokens_per_second
        console.print(
            f"{count:3} in flight, pair {pair + 1}: end to end {end_to_end.tokens_per_second:6.1f} tokens/s,"
            f" engine alone {bare.tokens_per_second:6.1f}, ratio {ratio:.3f}"
        )
    return _judge(count, wholes, alones, count * workload.max_tokens)


def _judge(count: int, wholes: list[EndToEndRun], alones: list[AloneRun], tokens: int) -> EndToEndComparison:
    ratios = [whole.tokens_per_second / alone.tokens_per_second for whole, alone in zip(wholes, alones, strict=True)]
    gap = statistics.median(float(np.percentile(whole.gaps, 99)) for whole in wholes)
    step = statistics.median(float(np.percentile(alone.steps, 99)) for alone in alones)
    names = sorted({name for whole in wholes for name in whole.processor_seconds})
    return EndToEndComparison(
        in_flight=count,
        end_to_end_tokens_per_second=statistics.median(whole.tokens_per_second for whole in wholes),
        alone_tokens_per_second=statistics.median(alone.tokens_per_second for alone in alones),
        ratio=statistics.median(ratios),
        ratios=ratios,
        p99_gap_ms=gap * 1e3,
        p99_step_ms=step * 1e3,
        gap_ratio=gap / step,
        processor_us_per_token={
            name: statistics.median(whole.processor_seconds.get(name, 0.0) for whole in wholes) / tokens * 1e6
            for name in names
        },
    )


def _run_end_to_end(server: Server, texts: list[str], max_tokens: int) -> EndToEndRun:
    before = by_name(server, processor_seconds)
    client_before = time.process_time()
    seconds, tokens, gaps = asyncio.run(_stream_all(server.grpc_address, texts, max_tokens))
    spent = {name: value - before.get(name, 0.0) for name, value in by_name(server, processor_seconds).items()}
    spent["client"] = time.process_time() - client_before
    return EndToEndRun(tokens / seconds, gaps, spent)


async def _stream_all(address: str, texts: list[str], max_tokens: int) -> tuple[float, int, list[float]]:
    async with AsyncClient(address) as client:

        async def one(text: str) -> tuple[int, list[float]]:
            times = []
            tokens = 0
            async for delta in client.stream(text, max_tokens=max_tokens):
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
    found: dict[str, float] = {}
    for process in [root, *root.children(recursive=True)]:
        found[_name(process)] = found.get(_name(process), 0.0) + measure(process)
    return found


def _name(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    for part in (
        "preprocessing",
        "postprocessing",
        "inflight.runtime.engine.worker",
        "tensorrt_llm_bls",
        "tensorrt_llm",
    ):
        if part in line.rpartition("/")[2] or f"/{part}/1/" in line:
            return {"inflight.runtime.engine.worker": "engine", "tensorrt_llm": "tensorrt_llm stub"}.get(part, part)
    return "tritonserver"


def _show(console: Console, like: str, comparisons: list[EndToEndComparison], resident: dict[str, float]) -> None:
    table = Table(title=f"{like}: end to end against the engine alone")
    for column in ("in flight", "end-to-end tok/s", "alone tok/s", "ratio", "p99 gap ms", "p99 step ms", "gap/step"):
        table.add_column(column, justify="right")
    for one in comparisons:
        table.add_row(
            str(one.in_flight), f"{one.end_to_end_tokens_per_second:.1f}", f"{one.alone_tokens_per_second:.1f}",
            f"{one.ratio:.3f}", f"{one.p99_gap_ms:.1f}", f"{one.p99_step_ms:.1f}", f"{one.gap_ratio:.2f}",
        )  # fmt: skip
    console.print(table)
    costs = Table(title="Processor time per token, microseconds")
    names = list(comparisons[0].processor_us_per_token)
    for column in ("in flight", *names):
        costs.add_column(column, justify="right")
    for one in comparisons:
        costs.add_row(str(one.in_flight), *(f"{one.processor_us_per_token[name]:.0f}" for name in names))
    console.print(costs)
    sizes = ", ".join(f"{name} {size:.0f} MiB" for name, size in sorted(resident.items(), key=lambda item: -item[1]))
    console.print(f"Resident memory: {sizes}; together {sum(resident.values()):.0f} MiB.")


if __name__ == "__main__":
    main()

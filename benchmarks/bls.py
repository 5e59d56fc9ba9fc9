"""The scripted model `tensorrt_llm_bls` against the ensemble: text in, gRPC streaming, client in this process.

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
from inflight_client import AsyncClient, Sampling
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.end_to_end import KV_CACHE_TOKENS, by_name, processor_seconds
from benchmarks.fixtures import bench_engine
from benchmarks.prompts import Prompts
from build_engines.manifest import Precision
from inflight.deploy.repository.configure import BLS_MODEL, DeploymentOptions
from inflight.deploy.server.server import Server

MODELS = ("ensemble", BLS_MODEL)


@dataclass(frozen=True)
class BlsRun:
    """Tokens per second, responses, the median time to the first one in seconds, processor seconds by process."""

    tokens_per_second: float
    responses: int
    first_response: float
    processor_seconds: dict[str, float]


@dataclass(frozen=True)
class BlsComparison:
    """Medians of one model's runs; `ratio` is the median of the pairs' ratios to the ensemble."""

    model: str
    tokens_per_second: float
    ratio: float
    ratios: list[float]
    first_response_ms: float
    responses_per_token: float
    processor_us_per_token: dict[str, float]


@click.command(help=__doc__)
@click.option("--like", default="qwen2.5-0.5b", show_default=True, help="Shape of the synthetic checkpoint.")
@click.option("--engine", type=click.Path(path_type=Path, exists=True), help="An engine directory instead.")
@click.option("--precision", default="bf16", show_default=True)
@click.option("--in-flight", default=64, show_default=True, help="Requests in flight.")
@click.option("--pairs", default=7, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path(".cache/bench/bls.json"), show_default=True)
def main(
    like: str,
    engine: Path | None,
    precision: Precision,
    in_flight: int,
    pairs: int,
    prompt_tokens: int,
    max_tokens: int,
    out: Path,
) -> None:
    console = Console()
    engine = engine or bench_engine(like, precision)
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
    runs: dict[str, list[BlsRun]] = {model: [] for model in MODELS}
    with Server(engine, DeploymentOptions(kv_cache_tokens=KV_CACHE_TOKENS)) as server:
        for pair in range(-1, pairs):
            texts = [text for text, _ in prompts.next_prompts(2 * in_flight, prompt_tokens)]
            for number, model in enumerate(MODELS if pair % 2 else reversed(MODELS)):
                run = _run(server, model, texts[number * in_flight :][:in_flight], max_tokens)
                if pair >= 0:  # the first pair is a warm-up for both
                    runs[model].append(run)
    comparisons = [_judge(model, runs[model], runs["ensemble"], in_flight * max_tokens) for model in MODELS]
    _show(console, f"{engine.name}, {in_flight} in flight", comparisons)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([asdict(one) for one in comparisons], indent=2))
    console.print(f"All figures: {out}")


def _run(server: Server, model: str, texts: list[str], max_tokens: int) -> BlsRun:
    before = by_name(server, processor_seconds)
    client_before = time.process_time()
    seconds, tokens, responses, first = asyncio.run(_stream_all(server.grpc_address, model, texts, max_tokens))
    spent = {name: value - before.get(name, 0.0) for name, value in by_name(server, processor_seconds).items()}
    spent["client"] = time.process_time() - client_before
    return BlsRun(tokens / seconds, responses, first, spent)


async def _stream_all(address: str, model: str, texts: list[str], max_tokens: int) -> tuple[float, int, int, float]:
    """Return the seconds until all have ended, their tokens and responses, and the median time to first response."""
    async with AsyncClient(address, model) as client:

        async def one(text: str) -> tuple[int, list[float]]:
            times, tokens = [], 0
            async for delta in client.stream(text, max_tokens=max_tokens, sampling=Sampling(end_id=-1)):
                times.append(time.perf_counter())
                tokens = delta.output_tokens or 0
            return tokens, times

        started = time.perf_counter()
        answers = await asyncio.gather(*(one(text) for text in texts))
        seconds = time.perf_counter() - started
    responses = sum(len(times) for _, times in answers)
    first = statistics.median(times[0] - started for _, times in answers)
    return seconds, sum(tokens for tokens, _ in answers), responses, first


def _judge(model: str, runs: list[BlsRun], measure: list[BlsRun], tokens: int) -> BlsComparison:
    ratios = [run.tokens_per_second / other.tokens_per_second for run, other in zip(runs, measure, strict=True)]
    names = sorted({name for run in runs for name in run.processor_seconds})
    return BlsComparison(
        model=model,
        tokens_per_second=statistics.median(run.tokens_per_second for run in runs),
        ratio=statistics.median(ratios),
        ratios=ratios,
        first_response_ms=statistics.median(run.first_response for run in runs) * 1e3,
        responses_per_token=statistics.median(run.responses for run in runs) / tokens,
        processor_us_per_token={
            name: statistics.median(run.processor_seconds.get(name, 0.0) for run in runs) / tokens * 1e6
            for name in names
        },
    )


def _show(console: Console, title: str, comparisons: list[BlsComparison]) -> None:
    table = Table(title=title)
    for column in ("model", "tok/s", "ratio", "ratios", "first response ms", "responses per token"):
        table.add_column(column, justify="right")
    for one in comparisons:
        between = f"{min(one.ratios):.3f} to {max(one.ratios):.3f}"
        table.add_row(
            one.model, f"{one.tokens_per_second:.1f}", f"{one.ratio:.3f}", between,
            f"{one.first_response_ms:.0f}", f"{one.responses_per_token:.2f}",
        )  # fmt: skip
    console.print(table)
    costs = Table(title="Processor time per token, microseconds")
    names = sorted({name for one in comparisons for name in one.processor_us_per_token})
    for column in ("model", *names):
        costs.add_column(column, justify="right")
    for one in comparisons:
        costs.add_row(one.model, *(f"{one.processor_us_per_token.get(name, 0):.0f}" for name in names))
    console.print(costs)


if __name__ == "__main__":
    main()

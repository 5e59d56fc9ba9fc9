"""`make bench`: a whole batch job against the engine alone, on the same rows in the same order.

The job is `inflight batch run` in its own process, beside the server, from JSON lines or an SQLite table to JSON lines.
The measured time is from its start until its last byte is on disk. Runs are interleaved in rounds; the result is the
median of the rounds' ratios. A fourth run of each round has only the last checkpoint.
"""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.batch.rows import BenchRow, equal_rows, tokens, write_openai, write_sqlite
from benchmarks.batch.run_timing import RunTimings, run_measured
from benchmarks.engine_alone import EngineAlone
from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine
from benchmarks.prompts import Prompts
from inflight.batch.dispatch.ephemeral_server import address_with_metrics
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.runtime.engine.interface import EngineOptions

KV_CACHE_TOKENS = 32768
_VARIANTS = ("alone", "jsonl", "sqlite", "last checkpoint only")
_WORK = BENCH_DIRECTORY / "batch"


@dataclass(frozen=True)
class BatchRun:
    """Tokens per second, and the time of the run's parts."""

    tokens_per_second: float
    figures: RunTimings


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
@click.option("--rows", default=96, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--max-tokens", default=32, show_default=True)
@click.option("--max-num-tokens", default=96, show_default=True, help="Maximum tokens per step, on both sides.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=BENCH_DIRECTORY / "batch_whole_way.json", show_default=True
)
def main(rounds: int, rows: int, prompt_tokens: int, max_tokens: int, max_num_tokens: int, out: Path) -> None:
    console = Console()
    engine = bench_engine("qwen2.5-0.5b", "bf16")
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
    alone = EngineAlone(EngineOptions("openvino", str(engine), KV_CACHE_TOKENS, max_num_tokens=max_num_tokens))
    deployment = DeploymentOptions(kv_cache_tokens=KV_CACHE_TOKENS, max_num_tokens=max_num_tokens)
    found: list[dict[str, BatchRun]] = []
    with Server(engine, deployment) as server:
        for number in range(-1, rounds):
            count = rows if number >= 0 else 16  # the first round is a warm-up for both
            # The same lengths for all, and prompts that this side has not seen.
            batches = {variant: equal_rows(prompts, count, prompt_tokens, max_tokens) for variant in _VARIANTS}
            batches["jsonl"] = batches["alone"]
            turn = number % len(_VARIANTS)
            one = {}
            for variant in (*_VARIANTS[turn:], *_VARIANTS[:turn]):
                one[variant] = _run(variant, batches[variant], alone, address_with_metrics(server))
            if number >= 0:
                found.append(one)
                speeds = ", ".join(f"{variant} {one[variant].tokens_per_second:.1f}" for variant in _VARIANTS)
                console.print(f"round {number + 1}, tokens/s: {speeds}")
    alone.close()
    shutil.rmtree(_WORK)
    _show(console, found, out)


def _run(variant: str, rows: list[BenchRow], alone: EngineAlone, address: str) -> BatchRun:
    if variant == "alone":
        return BatchRun(alone.run([row.ids for row in rows], rows[0].max_tokens).tokens_per_second, RunTimings())
    shutil.rmtree(_WORK, ignore_errors=True)
    _WORK.mkdir(parents=True)
    if variant == "sqlite":
        taken = [f"sqlite:///{write_sqlite(rows, _WORK / 'rows.db')}", "--table", "rows", "--id", "id"]
    else:
        taken = [str(write_openai(rows, _WORK / "rows.jsonl"))]
    if variant == "last checkpoint only":
        taken += ["--checkpoint-seconds", "600"]
    more = ["--out", str(_WORK / "answers.jsonl"), "--server", address]
    figures = run_measured("run", *taken, *more, "--max-tokens", str(rows[0].max_tokens), "--ignore-eos")
    return BatchRun(tokens(rows) / figures.run, figures)


def ratio(found: list[dict[str, BatchRun]], one: str, other: str) -> list[float]:
    """Return how many times as fast one variant was as the other, for each round."""
    return [run[one].tokens_per_second / run[other].tokens_per_second for run in found]


def _show(console: Console, found: list[dict[str, BatchRun]], out: Path) -> None:
    ratios = {variant: ratio(found, variant, "alone") for variant in _VARIANTS[1:]}
    ratios["checkpoints or only the last"] = ratio(found, "jsonl", "last checkpoint only")
    table = Table(title="Batch jobs: end to end against the engine alone")
    for column in ("way", "median ratio", "lowest", "highest"):
        table.add_column(column, justify="right")
    for variant, values in ratios.items():
        table.add_row(variant, *(f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))))
    console.print(table)
    timings = [run["jsonl"].figures for run in found]
    share = statistics.median(timing.checkpoints / timing.run for timing in timings)
    processor = statistics.median(timing.checkpoint_processor / timing.run for timing in timings)
    console.print(
        f"Checkpoints: {statistics.median(timing.checkpoint_count for timing in timings):.0f} per run, {share:.2%} of "
        f"its time including disk waits, {processor:.2%} of one core. Processor time of the job's process, with its "
        f"start: {statistics.median(timing.processor for timing in timings):.2f} s."
    )
    report = {
        "rounds": [{variant: asdict(run) for variant, run in one.items()} for one in found],
        "ratios": ratios,
        "checkpoint_share": share,
        "checkpoint_processor_share": processor,
    }
    out.write_text(json.dumps(report, indent=2))
    console.print(f"All figures: {out}")


if __name__ == "__main__":
    main()

"""`make bench`: a whole batch job against the engine alone, on the same rows in the same order.

The job is `inflight batch run` in its own process, beside the server, from JSON lines or an SQLite table to JSON lines.
The measured time is from its start until its last byte is on disk. Runs are interleaved in rounds; the result is the
median of the rounds' ratios. A fourth run of each round has only the last checkpoint; two have sampled requests.

By default the engine has the weights that `--precision auto` chooses, and the default limits. For the settings that
`inflight tune` found, pass `--config tuned/serve.yaml`.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
from tokenizers import Tokenizer

from benchmarks.batch.rows import BenchRow, equal_rows, tokens, write_openai, write_sqlite
from benchmarks.batch.run_timing import RunTimings, run_measured
from benchmarks.completion_client import GREEDY, SAMPLED
from benchmarks.engine_alone import EngineAlone
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine
from benchmarks.prompts import Prompts
from build_engines.manifest import Manifest, Precision
from inflight.batch.dispatch.ephemeral_server import address_with_metrics
from inflight.commands.options.config_file import config_option
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import SamplingConfig

_VARIANTS = ("alone", "jsonl", "sqlite", "last checkpoint only", "alone, sampled", "jsonl, sampled")
_WORK = BENCH_DIRECTORY / "batch"


@dataclass(frozen=True)
class BatchRun:
    """Tokens per second, and the time of the run's parts."""

    tokens_per_second: float
    figures: RunTimings


@click.command(help=__doc__)
@config_option({})
@click.option("--engine", type=click.Path(path_type=Path), help="Engine directory.  [default: the 0.5B shape]")
@click.option("--precision", default="auto", show_default=True, help="Weights, unless --engine is given.")
@click.option("--kv-cache-tokens", default=32768, show_default=True)
@click.option("--max-num-sequences", default=EngineOptions.max_num_sequences, show_default=True)
@click.option("--max-num-tokens", default=EngineOptions.max_num_tokens, show_default=True)
@click.option("--threads", type=int, help="Threads of the engine.  [default: one for each core]")
@click.option("--stream-interval", default=1, show_default=True, help="Tokens per response of a stream.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--rows", default=96, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--max-tokens", default=32, show_default=True)
@out_option("batch_end_to_end")
def main(
    engine: Path | None,
    precision: Precision | Literal["auto"],
    rounds: int,
    rows: int,
    prompt_tokens: int,
    max_tokens: int,
    out: Path,
    kv_cache_tokens: int,
    max_num_sequences: int,
    max_num_tokens: int,
    threads: int | None,
    stream_interval: int,
) -> None:
    engine = engine or bench_engine("qwen2.5-0.5b", precision)
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
    alone_options = EngineOptions(
        "openvino", str(engine), kv_cache_tokens, max_num_sequences, max_num_tokens, threads=threads or 0
    )
    deployment = DeploymentOptions(
        kv_cache_tokens=kv_cache_tokens, max_num_sequences=max_num_sequences, max_num_tokens=max_num_tokens,
        threads=threads, stream_interval=stream_interval,
    )  # fmt: skip
    alone = EngineAlone(alone_options)
    results: list[dict[str, BatchRun]] = []
    with Server(engine, deployment) as server:
        for number in range(-1, rounds):
            count = rows if number >= 0 else 16  # the first round is a warm-up for both
            # The same lengths for all, and prompts that this side has not seen.
            batches = {variant: equal_rows(prompts, count, prompt_tokens, max_tokens) for variant in _VARIANTS}
            batches["jsonl"] = batches["alone"]
            turn = number % len(_VARIANTS)
            runs = {}
            for variant in (*_VARIANTS[turn:], *_VARIANTS[:turn]):
                runs[variant] = _run(variant, batches[variant], alone, address_with_metrics(server))
            if number >= 0:
                results.append(runs)
                speeds = ", ".join(f"{variant} {runs[variant].tokens_per_second:.1f}" for variant in _VARIANTS)
                print(f"round {number + 1}, tokens/s: {speeds}", flush=True)
    alone.close()
    shutil.rmtree(_WORK)
    as_json = [{variant: asdict(run) for variant, run in runs.items()} for runs in results]
    report(
        out,
        _figures(results, Manifest.read(engine).precision),
        {"engine": asdict(alone_options), "rounds": as_json},
    )


def _run(variant: str, rows: list[BenchRow], alone: EngineAlone, address: str) -> BatchRun:
    sampling = SAMPLED if variant.endswith("sampled") else GREEDY
    if variant.startswith("alone"):
        fields = {"sampling": SamplingConfig(**sampling)}
        answers = alone.run([row.ids for row in rows], rows[0].max_tokens, fields)
        return BatchRun(answers.tokens_per_second, RunTimings())
    shutil.rmtree(_WORK, ignore_errors=True)
    _WORK.mkdir(parents=True)
    if variant == "sqlite":
        taken = [f"sqlite:///{write_sqlite(rows, _WORK / 'rows.db')}", "--table", "rows", "--id", "id"]
    else:
        taken = [str(write_openai(rows, _WORK / "rows.jsonl"))]
    if variant == "last checkpoint only":
        taken += ["--checkpoint-seconds", "600"]
    more = ["--out", str(_WORK / "answers.jsonl"), "--server", address]
    more += [f"--{name.replace('_', '-')}={value}" for name, value in sampling.items()]
    figures = run_measured("run", *taken, *more, "--max-tokens", str(rows[0].max_tokens), "--ignore-eos")
    return BatchRun(tokens(rows) / figures.run, figures)


def _figures(rounds: list[dict[str, BatchRun]], precision: str) -> list[Figure]:
    def ratios(variant: str, other: str) -> list[float]:
        return [run[variant].tokens_per_second / run[other].tokens_per_second for run in rounds]

    timings = [run["jsonl"].figures for run in rounds]
    processor = [timing.checkpoint_processor / timing.run for timing in timings]
    waits = [timing.checkpoints / timing.run for timing in timings]
    return [
        Figure(f"tokens/s, {precision}, job from JSON lines / engine alone", ratios("jsonl", "alone"), ">= 0.98"),
        Figure(
            f"tokens/s, {precision}, sampled, job / engine alone", ratios("jsonl, sampled", "alone, sampled"), ">= 0.98"
        ),
        Figure(f"tokens/s, {precision}, job from SQLite / engine alone", ratios("sqlite", "alone"), ">= 0.98"),
        Figure(f"tokens/s, {precision}, checkpoints / only the last one", ratios("jsonl", "last checkpoint only")),
        Figure("checkpoints, share of one core", processor, "<= 0.01"),
        Figure("checkpoints with their disk waits, share of the run", waits),
    ]


if __name__ == "__main__":
    main()

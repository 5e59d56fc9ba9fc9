"""`inflight tune`: find the settings with the highest throughput for a checkpoint, or for an engine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from inflight_client import InflightError
from rich.console import Console
from rich.table import Table

from build_engines.atomic_directory import exclusive_writer
from build_engines.manifest import FILE_NAME, GENERATION_TARGETS, Manifest
from build_engines.progress import NoBuildProgress
from inflight.commands.load.options import validated_plan
from inflight.commands.models.argument import kind_of
from inflight.commands.options.numbers import Number, Seconds
from inflight.commands.options.quiet import quiet_option
from inflight.commands.options.usage import usage_errors
from inflight.commands.terminal.build_progress import show_build_progress
from inflight.common.atomic_files import DISK_FULL_ERRORS, write_atomic
from inflight.common.schema.cli_options import Lines
from inflight.deploy.errors import DeployError
from inflight.tune.plan import AUTO, OPENVINO, TunePlan
from inflight.tune.results import EQUAL_BEGINNING, TuneResult
from inflight.tune.settings import EngineBuild, Grid
from loadtests.plan import LoadPlan
from loadtests.run.plan_check import check_workload

if TYPE_CHECKING:
    from inflight.evaluate.run import Scoring

_PIPE_WIDTH = 160
_PRECISIONS = {OPENVINO: ("int8", "bf16"), "tensorrt-llm": ("fp8", "bf16"), "llmapi": (AUTO,)}
_KV_PRECISIONS = {OPENVINO: ("u8", "bf16"), "tensorrt-llm": ("fp8", ""), "llmapi": ("fp8", "")}
_STEP_TOKENS = {OPENVINO: (96, 256), "tensorrt-llm": (4096, 8192), "llmapi": (4096, 8192)}
_COUNT = click.IntRange(1, 1_000_000)


@click.command("tune", short_help="Find the fastest settings for a checkpoint or an engine.")
@click.argument("source", metavar="CHECKPOINT|ENGINE")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("tuned"), show_default=True, help="Directory of the results."
)
@click.option(
    "--slo",
    multiple=True,
    type=Lines(),
    help="SLO that the settings must meet (repeatable), such as 'p99 itl <= 100ms'.",
)
@click.option("--prompts", help="File of prompts or conversations (JSON Lines).  [default: generated prompts]")
@click.option("--input-tokens", help="Tokens per generated prompt: a number or a distribution.  [default: 128]")
@click.option("--output-tokens", help="Tokens per answer: a number or a distribution.  [default: 64]")
@click.option("--users", type=_COUNT, default=32, show_default=True, help="Requests in flight.")
@click.option("--target", type=click.Choice(GENERATION_TARGETS), default=OPENVINO, show_default=True)
@click.option(
    "--precision",
    multiple=True,
    help="Weight precision to try (repeatable).  [default: openvino: int8, bf16; tensorrt-llm: fp8, bf16; llmapi: the"
    " checkpoint's]",
)
@click.option(
    "--kv-cache-precision",
    multiple=True,
    help="KV cache precision to try (repeatable).  [default: openvino: u8, bf16; GPU: fp8, that of the weights]",
)
@click.option(
    "--max-num-tokens",
    multiple=True,
    type=_COUNT,
    help="Maximum tokens per step to try (repeatable).  [default: openvino: 96, 256; GPU: 4096, 8192]",
)
@click.option(
    "--max-num-sequences",
    multiple=True,
    type=_COUNT,
    help="Maximum concurrent requests to try (repeatable).  [default: --users]",
)
@click.option(
    "--threads",
    multiple=True,
    type=_COUNT,
    help="Threads of the engine to try (repeatable).  [default: one for each core; from 4 cores on, also one fewer]",
)
@click.option(
    "--stream-interval",
    multiple=True,
    type=click.IntRange(1, 100),
    help="Tokens per response of a stream to try (repeatable).  [default: 1, 4]",
)
@click.option(
    "--temperature", type=Number(0, 2), default=0.8, show_default=True, help="Sampling temperature; 0: greedy decoding."
)
@click.option(
    "--top-p",
    type=Number(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Sample from the most likely tokens with this total probability.",
)
@click.option(
    "--trial-seconds",
    type=Seconds(0.5),
    default=6.0,
    show_default=True,
    help="Seconds of the first measurement of each engine alone.",
)
@click.option(
    "--seconds",
    type=Seconds(1),
    default=15.0,
    show_default=True,
    help="Seconds of each measurement through the server, at least; it lasts for two answers of each user.",
)
@click.option(
    "--finalists",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="How many of the fastest candidates to measure through the server; the best of every other weight precision is"
    " added.",
)
@click.option("--exhaustive", is_flag=True, help="Measure all candidates through the server.")
@click.option(
    "--golden",
    metavar="INPUT",
    help="Golden set; its metrics are shown in place of the comparison with the checkpoint in fp32.",
)
@click.option("--reference", metavar="COLUMN", help="Column of --golden with the right answers.")
@click.option(
    "--metric", multiple=True, metavar="LIST", help="Metrics of --golden, as `inflight evaluate run` has them."
)
@click.option("--no-quality", is_flag=True, help="Do not compare answers with the checkpoint in fp32.")
@click.option("--dry-run", is_flag=True, help="Print the command lines of all candidates, and measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
@quiet_option
def command(
    source: str, out: Path, target: str, no_quality: bool, dry_run: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Find the settings of CHECKPOINT (a directory or a name of the Hugging Face hub) with the most tokens per second.

    Engines are built for each precision. Each combination of limits is measured without a server; of many, the better
    half is measured again for twice as long. The best few are measured through the server by load tests. Answers are
    compared with the checkpoint in fp32, or scored by --golden. With ENGINE, an engine directory, only its limits are
    tried.

    The results are a table, report.html, tune.json and serve.yaml in --out. Repeat the command to go on with an
    interrupted run. Exit code 1 if no setting met the SLO.

    \b
      inflight tune Qwen/Qwen2.5-0.5B-Instruct
      inflight tune ./my-checkpoint --slo 'p99 itl <= 100ms' --slo 'p95 ttft <= 1s' --prompts prompts.jsonl
      inflight tune ./my-engine --users 64 --max-num-tokens 96 --max-num-tokens 512
      inflight tune ./my-checkpoint --target tensorrt-llm --dry-run
      inflight serve --config tuned/serve.yaml
    """  # fmt: skip
    scorings = _scorings(options)
    plan = _plan(source, target, no_quality or bool(scorings), dry_run, options)
    if scorings:
        hashes = [scoring.check_golden().sha256 for scoring in scorings]
        names = (metric.signature for scoring in scorings for metric in scoring.metrics)
        plan = replace(plan, golden=(hashes[0], str(options["reference"]), *names))
    if dry_run:
        for line in dict.fromkeys(line for each in plan.grid.settings() for line in plan.commands(each, str(out))):
            click.echo(line)
        return
    from inflight.evaluate.engines import evaluate_engine
    from inflight.tune.page import tune_page
    from inflight.tune.tuner import Tuner, write_serve_file

    try:
        with show_build_progress(quiet) as progress, exclusive_writer(out, progress.step):

            def evaluate(engine: Path) -> dict[str, float | None]:
                found = evaluate_engine(scorings, engine, out / "evaluations", progress.step)
                return {metric.name: metric.value for each in found for metric in each.metrics}

            result = Tuner(plan, out, progress, evaluate if scorings else None).run()
            write_atomic(out / "tune.json", json.dumps(asdict(result), indent=2) + "\n")
            write_serve_file(result, out / "serve.yaml", target)
            (out / "report.html").write_text(tune_page(result, Path(source).resolve().name), encoding="utf-8")
    except KeyboardInterrupt:
        click.echo("\nInterrupted; repeat the command to go on with the trials that are left.", err=True)
        sys.exit(130)
    except OSError as error:
        full = error.errno in DISK_FULL_ERRORS
        raise DeployError(
            f"{out} can't be written: {error.strerror or error}; {'free space' if full else 'check its permissions'},"
            " then repeat the command.",
            "disk_full" if full else "output_unwritable",
        ) from error
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        _show(result)
    click.echo(f"Report: {out / 'report.html'}", err=as_json)
    click.echo(f"Serve the best with: inflight serve --config {out / 'serve.yaml'}", err=as_json)
    sys.exit(0 if result.meets_slo else 1)


def _scorings(options: dict[str, Any]) -> list[Scoring]:
    """Return the evaluations of --golden. Raises UsageError, and BatchError for a golden set that can't be read."""
    if options["golden"] is None or not options["metric"]:
        if given := [name for name in ("golden", "reference", "metric") if options[name]]:
            raise click.UsageError(
                f"--{given[0]} needs {'--metric' if options['golden'] else '--golden'} too; give both"
            )
        return []
    from inflight.evaluate.engines import greedy_scorings
    from inflight.evaluate.metrics import CHOICE_METRICS, JUDGE, parse_metrics

    try:
        metrics = parse_metrics(options["metric"])
    except InflightError as error:
        raise click.UsageError(f"--metric: {error}") from None
    if others := [metric.name for metric in metrics if metric.name in (JUDGE, *CHOICE_METRICS)]:
        raise click.UsageError(
            f"{others[0]} needs options of `inflight evaluate run`; evaluate the chosen engine there"
        )
    return greedy_scorings(options["golden"], options["reference"], metrics)


def _plan(source: str, target: str, no_quality: bool, dry_run: bool, options: dict[str, Any]) -> TunePlan:
    """Return the plan that the options describe. Raises UsageError, and as `kind_of` and `locate_checkpoint` do.

    A dry run does not ask the hub whether a model there is one for OpenVINO.
    """
    from build_engines.checkpoints.locate import is_on_hub, locate_checkpoint
    from build_engines.checkpoints.openvino_ir import MODEL, is_openvino_model
    from build_engines.openvino.ready_model import read_precision

    is_engine = kind_of(source) == "deployable"
    if is_engine:
        if not (Path(source).expanduser() / FILE_NAME).is_file():
            raise click.UsageError(f"{source} is a repository; name the engine directory or checkpoint it was made of.")
        manifest = Manifest.read(Path(source).expanduser())
        target = manifest.target
        if options["precision"] or options["kv_cache_precision"]:
            raise click.UsageError(f"{source} is an engine, whose precisions are fixed; name its checkpoint instead.")
        if target == "tensorrt-llm":
            raise click.UsageError(f"{source} has its limits compiled in; name its checkpoint instead.")
        builds = [EngineBuild(manifest.precision, manifest.kv_cache_precision)]
    else:
        place = Path(source).expanduser()
        if target == OPENVINO and is_on_hub(source) and not dry_run:
            place = locate_checkpoint(source, NoBuildProgress(), include=("config.json", MODEL))
        ready = [read_precision(place)] if target == OPENVINO and is_openvino_model(place) else []
        if ready and (others := {*options["precision"]} - {*ready}):
            raise click.UsageError(f"{source} has {ready[0]} weights; leave --precision {min(others)} out.")
        builds = _builds(target, options["precision"] or ready, options["kv_cache_precision"])
        no_quality = no_quality or bool(ready)  # there are no weights in fp32 to compare with
    if target != OPENVINO and (options["threads"] or options["stream_interval"]):
        raise click.UsageError("--threads and --stream-interval are for --target openvino; leave them out.")
    grid = Grid(
        builds,
        options["max_num_tokens"] or _STEP_TOKENS[target],
        options["max_num_sequences"] or (options["users"],),
        (options["threads"] or _default_threads()) if target == OPENVINO else (0,),
        (options["stream_interval"] or (1, 4)) if target == OPENVINO else (1,),
    )
    return TunePlan(
        source, target, is_engine, grid, _load_plan(options), options["users"], options["trial_seconds"],
        options["finalists"], options["exhaustive"], quality_prompts=0 if no_quality else 16,
    )  # fmt: skip


def _builds(target: str, precisions: Sequence[str], kv_precisions: Sequence[str]) -> list[EngineBuild]:
    from build_engines.target import BuildOptions, check_precisions

    builds = [
        EngineBuild(precision, kv_precision)
        for precision in precisions or _PRECISIONS[target]
        for kv_precision in kv_precisions or _KV_PRECISIONS[target]
    ]
    for build in builds:
        precision = None if build.precision == AUTO else build.precision
        with usage_errors():
            check_precisions(BuildOptions(target, precision, build.kv_precision or None))  # type: ignore[arg-type]
    return builds


def _default_threads() -> tuple[int, ...]:
    cores = len(os.sched_getaffinity(0))
    return (0, cores - 1) if cores >= 4 else (0,)


def _load_plan(options: dict[str, Any]) -> LoadPlan:
    names = ("prompts", "input_tokens", "output_tokens", "temperature", "top_p", "seconds", "slo")
    chosen = {name: options[name] for name in names}
    warmup = max(2.0, options["seconds"] / 4)
    plan = validated_plan({**chosen, "users": str(options["users"]), "warmup": warmup}, None)
    with usage_errors():
        check_workload(plan)
    return plan


def _show(result: TuneResult) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    table = Table(title="Through the server")
    has_slo = result.best.meets_slo is not None
    table.add_column("settings")
    names = [name for name in (result.quality[0].figures if result.quality else ()) if name != EQUAL_BEGINNING]
    for name in ("tokens/s", "alone", "TTFT p99", "TPOT p99", *names, *(("SLO",) if has_slo else ())):
        table.add_column(name, justify="right")
    alone = {(trial.settings.build, *_limits(trial)): trial.tokens_per_second for trial in result.alone}
    for trial in result.served:
        quality = result.quality_of(trial.settings.build)
        speed = alone.get((trial.settings.build, *_limits(trial)))
        row = [
            str(trial.settings),
            f"{trial.tokens_per_second:.1f}",
            "" if speed is None else f"{speed:.1f}",
            _milliseconds(trial.p99.get("ttft")),
            _milliseconds(trial.p99.get("tpot")),
            *("" if quality is None else quality.shown(name) for name in names),
        ]
        if has_slo:
            row.append("met" if trial.meets_slo else "[red]MISSED[/red]")
        table.add_row(*row, style="bold" if trial == result.best else None)
    console.print(table)
    for settings, error in result.failed.items():
        console.print(f"Left out: {settings}: {error}", markup=False)
    console.print(f"Best: {result.best.settings}. It took {result.seconds / 60:.1f} minutes.", markup=False)
    for note in result.notes():
        console.print(f"NOTE: {note}", style="yellow", markup=False)
    if not result.meets_slo:
        console.print("No setting met the SLO; lower --users, or relax the SLO.", style="red")


def _limits(trial: Any) -> tuple[int, int, int]:
    return trial.settings.max_num_tokens, trial.settings.max_num_sequences, trial.settings.threads


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value * 1e3:,.0f} ms"

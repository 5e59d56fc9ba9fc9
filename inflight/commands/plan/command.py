"""`inflight plan`: what a model takes of memory, and what fits, before anything is fetched or built."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from build_engines.errors import BuildError
from build_engines.manifest import TARGETS
from build_engines.plan.formats import (
    GPU_KV,
    GPU_WEIGHTS,
    OPENVINO_KV,
    OPENVINO_WEIGHTS,
    kv_format,
    weight_format,
)
from build_engines.plan.gpus import GPUS, GpuModel, find_gpu
from build_engines.plan.machine_memory import available_bytes
from build_engines.plan.memory_plan import MemoryPlan, PlanRequest, make_plan
from build_engines.plan.size import parse_size

T = TypeVar("T")


class _ParsedValue(click.ParamType[Any]):
    """A value that `read` understands; what it refuses is wrong usage."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except BuildError as error:
            self.fail(str(error), param, ctx)


@click.command("plan", short_help="Estimate memory and show which configurations fit.")
@click.argument("checkpoint")
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="What runs the engine.  [default: openvino; with --gpu or --memory tensorrt-llm, or llmapi for models that "
    "it alone runs]",
)
@click.option("--gpu", type=_ParsedValue("NAME", find_gpu), help=f"One of {', '.join(GPUS)}.")
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True, help="How many of them there are.")
@click.option(
    "--memory",
    type=_ParsedValue("SIZE", parse_size),
    help="Of one GPU, such as 24GiB; with --target openvino of the machine.  [default there: what is free]",
)
@click.option(
    "--precision",
    multiple=True,
    help=f"Weight precision (repeatable): {', '.join(GPU_WEIGHTS)}; with openvino {', '.join(OPENVINO_WEIGHTS)}."
    "  [default: a table of several]",
)
@click.option(
    "--kv-cache-precision",
    multiple=True,
    help=f"KV cache precision (repeatable): {', '.join(GPU_KV)}; with openvino {', '.join(OPENVINO_KV)}."
    "  [default: several]",
)
@click.option(
    "--max-seq-len", type=click.IntRange(1), help="Tokens of prompt and answer together.  [default: 8192 at most]"
)
@click.option(
    "--max-num-sequences", type=click.IntRange(1), help="Sequences of that length at once.  [default: as many as fit]"
)
@click.option("--json", "as_json", envvar="INFLIGHT_PLAN_JSON", is_flag=True, help="All numbers, in bytes, as JSON.")
def command(
    checkpoint: str,
    target: str | None,
    gpu: GpuModel | None,
    gpus: int,
    memory: int | None,
    precision: tuple[str, ...],
    kv_cache_precision: tuple[str, ...],
    max_seq_len: int | None,
    max_num_sequences: int | None,
    as_json: bool,
) -> None:
    """Say what CHECKPOINT takes of memory, what fits, and what to build.

    CHECKPOINT is a directory, of which config.json is enough, or a name on the hub, of which config.json is fetched
    and nothing else. docs/plan.md has the formulas, and how exact they are. Exit code 1 where nothing fits.

    \b
    inflight plan meta-llama/Llama-3.1-8B --gpu h200
    inflight plan ./my-checkpoint --gpu l40s --gpus 2 --max-seq-len 32768 --max-num-sequences 8
    inflight plan ./my-checkpoint --memory 24GiB --precision int4_awq --kv-cache-precision fp8 --json
    inflight plan ./my-checkpoint --target openvino --memory 16GiB
    """
    wish = _plan_request(target, gpu, gpus, memory)
    wish = replace(
        wish,
        weights=_formats("--precision", precision, lambda name: weight_format(name, openvino=wish.is_openvino)),
        kv=_formats(
            "--kv-cache-precision", kv_cache_precision, lambda name: kv_format(name, openvino=wish.is_openvino)
        ),
        length=max_seq_len,
        max_num_sequences=max_num_sequences,
    )
    plan = _make_plan(checkpoint, wish, settled=target is not None)
    if as_json:
        from build_engines.plan.report import as_json as report

        click.echo(json.dumps(report(plan), indent=2))
    else:
        from inflight.commands.plan.table import show_plan

        show_plan(plan)
    sys.exit(0 if plan.recommended else 1)


def _plan_request(named: str | None, gpu: GpuModel | None, gpus: int, memory: int | None) -> PlanRequest:
    """On what; raises UsageError where the options contradict each other or leave it open."""
    target = named or ("tensorrt-llm" if gpu or memory else "openvino")
    if gpu and memory:
        raise click.UsageError("--gpu names a GPU and --memory describes one; leave one of them out.")
    if target == "openvino":
        if gpu or gpus > 1:
            raise click.UsageError("--target openvino runs on the processor; leave --gpu and --gpus out.")
        return PlanRequest(
            memory or available_bytes(), "this machine" if memory is None else "the machine", target=target
        )
    if gpu:
        return PlanRequest(gpu.memory, gpu.title, gpus, gpu.sm, target)
    if memory:
        return PlanRequest(memory, "the GPU", gpus, target=target)
    raise click.UsageError(f"--target {target} runs on GPUs; say which with --gpu, or how large with --memory.")


def _formats(option: str, names: tuple[str, ...], read: Callable[[str], T]) -> tuple[T, ...]:
    try:
        return tuple(dict.fromkeys(read(name) for name in names))
    except BuildError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _make_plan(checkpoint: str, wish: PlanRequest, *, settled: bool) -> MemoryPlan:
    """The plan; on GPUs for the target that suits the model where none is `settled`."""
    from build_engines.checkpoints.locate import locate_checkpoint
    from build_engines.plan.model import read_model
    from build_engines.plan.support_matrix import default_gpu_target
    from inflight.commands.terminal.build_progress import BuildProgressLines

    model = read_model(locate_checkpoint(checkpoint, BuildProgressLines(), include=["config.json"]))
    return make_plan(model, wish if settled or wish.is_openvino else replace(wish, target=default_gpu_target(model)))

"""`inflight plan`: estimate memory and what fits before anything is downloaded or built."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn, TypeVar, cast, get_args

import click

from build_engines.checkpoints.checkpoint import checkpoint_directory, read_config
from build_engines.checkpoints.openvino_ir import MODEL
from build_engines.ctranslate2.memory import plan_seq2seq
from build_engines.ctranslate2.target import check_precision_here
from build_engines.encoders.memory import EncoderPlan, plan_encoder
from build_engines.encoders.settings import CONFIG_FILES, find_task
from build_engines.errors import BuildError
from build_engines.manifest import SEQ2SEQ_TARGETS, TARGETS, EncoderTask, Precision
from build_engines.plan.formats import GPU_KV, GPU_WEIGHTS, OPENVINO_KV, OPENVINO_WEIGHTS, kv_format, weight_format
from build_engines.plan.gpus import GPUS, GpuModel, find_gpu
from build_engines.plan.memory_plan import MemoryPlan, PlanRequest, make_plan
from build_engines.plan.size import parse_size
from build_engines.plan.speed import ANSWER_TOKENS, PROMPT_TOKENS, SpeedPlan, plan_speed
from build_engines.target import BuildOptions, find_target, is_seq2seq
from inflight.commands.options.engine import check_precision
from inflight.commands.options.numbers import ParsedValue
from inflight.deploy.memory import available_bytes

T = TypeVar("T")

_TASKS = ("generate", *get_args(EncoderTask))
_MAX_TOKENS = 8192  # the prediction simulates the steps of two answers of each sequence


@click.command("plan", short_help="Estimate memory and show which configurations fit.")
@click.argument("checkpoints", metavar="CHECKPOINT...", nargs=-1, required=True)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="Target of the engine.  [default: openvino; with --gpu or --memory: tensorrt-llm, llmapi for models that "
    "only it supports, or tensorrt for those that embed, rerank or classify]",
)
@click.option(
    "--task", type=click.Choice(_TASKS), help="What the engine is for.  [default: what the checkpoint is for]"
)
@click.option("--gpu", type=ParsedValue("NAME", find_gpu), help=f"One of {', '.join(GPUS)}.")
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of GPUs.")
@click.option(
    "--memory",
    type=ParsedValue("SIZE", parse_size),
    help="Memory of one GPU, such as 24GiB; with --target openvino or ctranslate2: of the machine.  [default there: "
    "free memory]",
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
    "--max-seq-len",
    type=click.IntRange(1),
    help="Maximum tokens of prompt and answer together.  [default: the model's, at most 8192]",
)
@click.option(
    "--max-num-sequences",
    type=click.IntRange(1),
    help="Maximum concurrent sequences of that length.  [default: as many as fit]",
)
@click.option(
    "--max-batch-tokens",
    type=click.IntRange(1),
    help="embed, rerank, classify: padded tokens of a micro-batch.  [default: 256 for each core]",
)
@click.option(
    "--input-tokens",
    type=click.IntRange(1, _MAX_TOKENS),
    default=PROMPT_TOKENS,
    show_default=True,
    help="Tokens per prompt, for the speed.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1, _MAX_TOKENS),
    default=ANSWER_TOKENS,
    show_default=True,
    help="Tokens per answer, for the speed.",
)
@click.option("--no-speed", is_flag=True, help="Do not measure this machine to predict tokens per second.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures, in bytes, as JSON.")
def command(
    checkpoints: tuple[str, ...],
    target: str | None,
    task: Literal["generate"] | EncoderTask | None,
    gpu: GpuModel | None,
    gpus: int,
    memory: int | None,
    precision: tuple[str, ...],
    kv_cache_precision: tuple[str, ...],
    max_seq_len: int | None,
    max_num_sequences: int | None,
    max_batch_tokens: int | None,
    input_tokens: int,
    output_tokens: int,
    no_speed: bool,
    as_json: bool,
) -> None:
    """Estimate the memory that CHECKPOINT needs, which configurations fit, and what to build.

    For the processor of this machine, also predict tokens per second, from the speed of matrix multiplications measured
    in a few seconds.

    CHECKPOINT is a directory with at least config.json, or a model name on the Hugging Face hub, from which only
    config.json is downloaded. docs/plan.md has the formulas and their accuracy. Exit code 1 if nothing fits.

    Of several CHECKPOINTs or engines, show which fit into --memory together, as `inflight serve` loads them.

    \b
    inflight plan meta-llama/Llama-3.1-8B --gpu h200
    inflight plan ./my-checkpoint --gpu l40s --gpus 2 --max-seq-len 32768 --max-num-sequences 8
    inflight plan ./my-checkpoint --memory 24GiB --precision int4_awq --kv-cache-precision fp8 --json
    inflight plan ./my-checkpoint --target openvino --memory 16GiB
    inflight plan ./small-engine ./big-engine --memory 16GiB
    """
    if len(checkpoints) > 1:
        if gpu or target not in (None, "openvino"):
            raise click.UsageError("Several models share the memory of a processor; leave --gpu and --target out.")
        _plan_together(checkpoints, memory or available_bytes(), precision, kv_cache_precision, max_seq_len, as_json)
    request = _plan_request(target, gpu, gpus, memory)
    directory = _locate(checkpoints[0])
    if task is None and is_seq2seq(directory) and target in (None, *SEQ2SEQ_TARGETS):
        request = _plan_request(SEQ2SEQ_TARGETS[0], gpu, gpus, memory)
    if request.target in SEQ2SEQ_TARGETS:
        for name in precision:
            check_precision(BuildOptions(request.target, cast(Precision, name)))
            if memory is None:
                check_precision_here(name)
        _show_encoder(
            plan_seq2seq(
                directory,
                memory=request.memory,
                device=request.device,
                precisions=precision,
                max_seq_len=max_seq_len,
                max_batch_tokens=max_batch_tokens,
            ),
            as_json,
        )
    task = task or find_task(directory)
    if task != "generate" and target is None and not request.is_openvino:
        request = replace(request, target="tensorrt")
    check_precision(BuildOptions(request.target, task=task))
    if task != "generate":
        _plan_encoder(directory, task, request, precision, max_seq_len, max_batch_tokens, as_json)
    request = _with_formats(request, precision, kv_cache_precision, max_seq_len)
    request = replace(request, max_num_sequences=max_num_sequences)
    plan = _make_plan(directory, request, settled=target is not None)
    here = request.is_openvino and memory is None and not no_speed
    speed = _predict_speed(plan, input_tokens, output_tokens) if here else None
    if as_json:
        from build_engines.plan.report import as_json as report

        click.echo(json.dumps(report(plan, speed), indent=2))
    else:
        from inflight.commands.plan.table import show_plan

        show_plan(plan, speed)
    sys.exit(0 if plan.recommended else 1)


def _predict_speed(plan: MemoryPlan, prompt: int, answer: int) -> SpeedPlan | None:
    """Return the predicted speed, None with a message if it can't be predicted: the memory can be planned anyway."""
    if not any(fit.fits for fit in plan.fits):
        return None
    if prompt + answer > plan.length:
        click.echo(
            f"Note: The speed is not predicted: a prompt of {prompt} tokens and an answer of {answer} are longer than"
            f" sequences of {plan.length}; pass --input-tokens and --output-tokens.",
            err=True,
        )
        return None
    try:
        return plan_speed(plan, prompt, answer)
    except BuildError as error:
        click.echo(f"Note: {error}", err=True)
        return None


def _plan_request(named: str | None, gpu: GpuModel | None, gpus: int, memory: int | None) -> PlanRequest:
    """Return what to plan for. Raises UsageError for contradictory or missing options."""
    target = named or ("tensorrt-llm" if gpu or memory else "openvino")
    if gpu and memory:
        raise click.UsageError("--gpu names a GPU and --memory describes one; leave one of them out.")
    if target in ("openvino", *SEQ2SEQ_TARGETS):
        if gpu or gpus > 1:
            raise click.UsageError(f"--target {target} runs on the processor; leave --gpu and --gpus out.")
        return PlanRequest(
            memory or available_bytes(), "this machine" if memory is None else "the machine", target=target
        )
    if gpu:
        return PlanRequest(gpu.memory, gpu.title, gpus, gpu.sm, target)
    if memory:
        return PlanRequest(memory, "the GPU", gpus, target=target)
    raise click.UsageError(f"--target {target} runs on GPUs; name the GPU with --gpu or its size with --memory.")


def _with_formats(
    request: PlanRequest, precision: tuple[str, ...], kv_cache_precision: tuple[str, ...], max_seq_len: int | None
) -> PlanRequest:
    here = request.is_openvino
    return replace(
        request,
        weights=_formats("--precision", precision, lambda name: weight_format(name, openvino=here)),
        kv=_formats("--kv-cache-precision", kv_cache_precision, lambda name: kv_format(name, openvino=here)),
        length=max_seq_len,
    )


def _formats(option: str, names: tuple[str, ...], read: Callable[[str], T]) -> tuple[T, ...]:
    try:
        return tuple(dict.fromkeys(read(name) for name in names))
    except BuildError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _locate(checkpoint: str) -> Path:
    from build_engines.checkpoints.locate import locate_checkpoint
    from inflight.commands.terminal.build_progress import BuildProgressLines

    return locate_checkpoint(checkpoint, BuildProgressLines(), include=(*CONFIG_FILES, MODEL))


def _plan_together(
    checkpoints: tuple[str, ...],
    memory: int,
    precision: tuple[str, ...],
    kv_cache_precision: tuple[str, ...],
    max_seq_len: int | None,
    as_json: bool,
) -> NoReturn:
    """Show which models fit together, and exit as the command does."""
    from inflight.commands.plan.together import model_memory, show_together

    request = _plan_request("openvino", None, 1, memory)
    request = _with_formats(request, precision, kv_cache_precision, max_seq_len)
    share = memory // len(checkpoints)
    models = {each: model_memory(_locate(each), request, share) for each in checkpoints}
    sys.exit(0 if show_together(models, memory, as_json) else 1)


def _plan_encoder(
    directory: Path,
    task: EncoderTask,
    request: PlanRequest,
    precision: tuple[str, ...],
    max_seq_len: int | None,
    max_batch_tokens: int | None,
    as_json: bool,
) -> NoReturn:
    """Show the plan of an encoder, and exit as the command does."""
    directory = checkpoint_directory(directory)
    weights = _formats("--precision", precision, lambda name: weight_format(name, openvino=True))
    for name in tuple(weight.name for weight in weights) or (None,):
        options = BuildOptions(request.target, cast(Precision | None, name), task=task)
        check_precision(options)
        if not request.is_openvino:
            find_target(options).check_supported(directory, read_config(directory))
    if request.devices > 1:
        raise click.UsageError(f"A model that is built to {task} runs on one GPU; leave --gpus out.")
    plan = plan_encoder(
        directory,
        task,
        memory=request.memory,
        device=request.device,
        weights=weights,
        max_seq_len=max_seq_len,
        max_batch_tokens=max_batch_tokens,
        target=request.target,
    )
    _show_encoder(plan, as_json)


def _show_encoder(plan: EncoderPlan, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json.dumps(plan.as_json(), indent=2))
    else:
        from inflight.commands.plan.table import show_encoder_plan

        show_encoder_plan(plan)
    sys.exit(0 if plan.recommended else 1)


def _make_plan(directory: Path, request: PlanRequest, *, settled: bool) -> MemoryPlan:
    """Return the plan; on GPUs, choose the target that suits the model unless it is `settled`."""
    from build_engines.plan.model import read_model
    from build_engines.plan.support_matrix import default_gpu_target

    model = read_model(directory)
    return make_plan(
        model, request if settled or request.is_openvino else replace(request, target=default_gpu_target(model))
    )

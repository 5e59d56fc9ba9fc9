"""`inflight build`: compile a checkpoint into an engine directory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from build_engines.manifest import Manifest, Pooling, Seq2SeqManifest
from build_engines.target import DEFAULT_TARGET, KV_PRECISIONS, TASKS
from inflight.commands.build.tensorrt_llm_options import (
    show_commands,
    show_encoder_command,
    tensorrt_llm_options,
    tensorrt_llm_settings,
)
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.engine import (
    PRECISION_HELP,
    TargetPrecision,
    check_precision,
    precision_option,
    target_option,
)
from inflight.commands.options.quiet import quiet_option
from inflight.commands.options.usage import usage_errors
from inflight.commands.terminal.build_progress import show_build_progress

_LANGUAGES = 12  # of a model that knows many, only the first ones are shown

TARGET = "llmapi"


llmapi_options = section(
    "GPU only: LLM API",
    click.option(
        "--llm-arguments",
        type=click.Path(path_type=Path),
        help="llmapi: a YAML file with arguments of tensorrt_llm.LLM; see docs/llmapi.md.",
    ),
    click.option(
        "--llm-argument",
        multiple=True,
        metavar="NAME=VALUE",
        help="llmapi: one such argument, which overrides the file (repeatable): kv_cache_config.max_tokens=65536.",
    ),
)
"""Adds both options to a command; `llmapi_settings` reads them."""


def llmapi_settings(target: str, llm_arguments: Path | None, llm_argument: tuple[str, ...]) -> object:
    """Return the target's settings from its options; None for another target.

    Raises click.UsageError for arguments that the target or the library does not have.
    """
    if target != TARGET:
        if llm_arguments is not None or llm_argument:
            raise click.UsageError(
                f"--llm-arguments and --llm-argument are for --target {TARGET}, not {target}; leave them out."
            )
        return None
    from build_engines.llmapi.arguments import read_arguments

    with usage_errors():
        return read_arguments(llm_arguments, llm_argument)


@click.command("build", cls=SectionedCommand)
@click.argument("checkpoint")
@section(
    "Engine",
    click.option("--out", type=click.Path(path_type=Path), help="Engine directory to write.  [required]"),
    target_option(),
    click.option(
        "--task",
        type=click.Choice(TASKS),
        help="What the engine is for.  [default: what the checkpoint is for: generate for a causal language model, "
        "embed for a directory of sentence-transformers, rerank for a sequence classifier with one label, classify "
        "with more]",
    ),
    precision_option(PRECISION_HELP),
    click.option(
        "--kv-cache-precision",
        "kv_precision",
        type=TargetPrecision(KV_PRECISIONS),
        help="KV cache precision. openvino: u8 (default), f32 (default with --precision fp32), f16, bf16. "
        "tensorrt-llm: the type of the weights (default), fp8, int8.",
    ),
    click.option(
        "--max-seq-len",
        type=click.IntRange(min=2),
        help="Maximum tokens of prompt and answer together, or of a text with its special tokens. [default: the "
        "model's]",
    ),
    click.option("--name", help="Name of the engine. [default: the hub name, or the name of the directory]"),
    click.option(
        "--force",
        is_flag=True,
        help="Rebuild even if nothing changed, and replace an engine that is in use or has other options.",
    ),
    click.option("--no-smoke-test", is_flag=True, help="Skip the test load of the new engine (saves memory)."),
)
@section(
    "Embeddings",
    click.option(
        "--pooling",
        type=click.Choice(get_args(Pooling)),
        help="embed: how the vectors of the tokens become one.  [default: the checkpoint's; without one mean, "
        "last_token for a causal language model]",
    ),
    click.option(
        "--normalize/--no-normalize",
        default=None,
        help="embed: scale embeddings to length 1.  [default: the checkpoint's; without one --normalize]",
    ),
)
@tensorrt_llm_options
@llmapi_options
@section(
    "Output",
    click.option(
        "--dry-run",
        is_flag=True,
        help="Write nothing. tensorrt-llm, tensorrt: print the commands that would run (needs no GPU). llmapi: print "
        "the model.yaml.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the manifest at the end."),
    quiet_option,
)
def command(
    checkpoint: str,
    out: Path | None,
    force: bool,
    no_smoke_test: bool,
    as_json: bool,
    quiet: bool,
    dry_run: bool,
    llm_arguments: Path | None,
    llm_argument: tuple[str, ...],
    **options: Any,
) -> None:
    """Compile CHECKPOINT, a Hugging Face directory or model name, or a GGUF file, into an engine directory.

    The engine does not need the checkpoint afterwards. A build is skipped if nothing changed. An existing engine at
    --out is replaced only when the new one is complete, and without --force only one with the same options that no
    server uses.

    \b
    inflight build ./my-checkpoint --out ./my-engine
    inflight build Qwen/Qwen2.5-0.5B-Instruct --out ./qwen
    inflight build sentence-transformers/all-MiniLM-L6-v2 --task embed --out ./my-embedder
    inflight build ./my-checkpoint --precision int8 --out ./my-engine-int8
    inflight build ./my-checkpoint --precision fp32 --kv-cache-precision f32 --out ./exact --json
    inflight build ./my-checkpoint --target tensorrt-llm --precision fp8 --tensor-parallel 2 --out ./on-h100 --dry-run
    inflight build ./my-checkpoint --target llmapi --llm-argument tensor_parallel_size=2 --out ./for-gpus --dry-run
    inflight build ./all-MiniLM-L6-v2 --target tensorrt --docker --out ./minilm-on-h100
    """
    from build_engines.build import BuildOptions, build_engine

    if out is None:
        raise click.MissingParameter(param_hint="'--out'", param_type="option")
    started = time.monotonic()
    target = options["target"] or DEFAULT_TARGET
    settings = llmapi_settings(target, llm_arguments, llm_argument)
    settings = tensorrt_llm_settings(target, options) or settings
    chosen = BuildOptions(smoke_test=not no_smoke_test, settings=settings, **options)
    check_precision(chosen)
    if dry_run:
        _dry_run(checkpoint, out, chosen, as_json)
        return
    with show_build_progress(quiet) as progress:
        built = build_engine(checkpoint, out, chosen, force=force, progress=progress)
    for note in built.notes:
        click.echo(f"Note: {note}", err=True)
    if as_json:
        click.echo(built.manifest.model_dump_json(indent=2))
        return
    if quiet:
        return
    manifest = built.manifest
    if not built.fresh:
        click.echo(f"{out} is up to date: same checkpoint, options and versions (--force builds again).")
        return
    size = sum(file.bytes for file in manifest.files.values()) / 1e6
    if isinstance(manifest, Manifest):
        what = f"{manifest.kv_cache_precision} KV cache"
    elif isinstance(manifest, Seq2SeqManifest):
        languages = ", ".join(manifest.languages[:_LANGUAGES]) + ", …" * (len(manifest.languages) > _LANGUAGES)
        what = ", ".join(filter(None, [manifest.task, languages or "English only" * (manifest.task == "transcribe")]))
    else:
        what = f"{manifest.task}, {manifest.dimensions} dimensions, up to {manifest.max_seq_len} tokens a text"
    click.echo(
        f"Built {out} in {time.monotonic() - started:.0f} s: {manifest.architecture}, {manifest.precision} weights, "
        f"{what}, {size:,.0f} MB."
    )
    click.echo(f"Serve it with: inflight serve {out}")


def _dry_run(checkpoint: str, out: Path, options: Any, as_json: bool) -> None:
    from build_engines.checkpoints.locate import locate_checkpoint

    if options.target in (None, "openvino", "ctranslate2"):
        target = options.target or DEFAULT_TARGET
        plan = "use `inflight plan`, or " if target == "openvino" else ""
        raise click.UsageError(f"--dry-run is not for --target {target}; {plan}leave it out.")
    with show_build_progress() as progress:
        directory = locate_checkpoint(checkpoint, progress)
    if options.target == "tensorrt-llm":
        show_commands(directory, out, options, as_json)
        return
    if options.target == "tensorrt":
        show_encoder_command(directory, out, options)
        return

    from build_engines.encoders import llmapi_target
    from build_engines.encoders.settings import find_task
    from build_engines.llmapi.target import model_yaml

    chosen = replace(options, task=options.task or find_task(directory))
    show = model_yaml if chosen.task == "generate" else llmapi_target.model_yaml
    click.echo(show(directory, chosen), nl=False)

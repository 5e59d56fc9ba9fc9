"""Options of `inflight build --target tensorrt-llm`: a recipe, and where to run NVIDIA's programs.

The target `tensorrt` of encoders has some of them too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from build_engines.containers import DEFAULT_CONTAINER
from build_engines.settings_file import parse_value
from build_engines.tensorrt_llm.recipe import Recipe, read_recipe
from inflight.commands.option_sections import section
from inflight.common.schema.cli_options import nested_options

TARGET = "tensorrt-llm"
ENCODER_TARGET = "tensorrt"
_DIRECTORY = click.Path(path_type=Path)
# The recipe field of each flag; use --set for all others.
_FIELDS = {
    **{name: name for name in ("dtype", "quantization", "kv_cache_dtype", "tensor_parallel", "pipeline_parallel")},
    **{
        name: f"limits.{name}"
        for name in ("max_batch_size", "max_input_len", "max_num_tokens", "opt_num_tokens", "max_beam_width")
    },
    "speculative_decoding_mode": "speculation.mode",
    "max_draft_len": "speculation.max_draft_len",
    "draft_model": "speculation.model",
    "max_lora_rank": "lora.max_rank",
    "calibration_dataset": "calibration.dataset",
    "workers": "workers",
    **{
        name: name
        for name in ("paged_context_fmha", "fp8_context_fmha", "kv_cache_reuse", "chunked_context", "multiple_profiles")
    },
}
_PROGRAM_OPTIONS = ("docker", "image", "docker_gpus", "docker_shm_size", "examples_dir")
# Options that all targets share under another name, and their flags.
_SAME_AS = {"quantization": ("precision", "--precision"), "kv_cache_dtype": ("kv_precision", "--kv-cache-precision")}
_PREFIX = "tensorrt-llm: "
_PREFIX_OF_BOTH = f"tensorrt-llm, {ENCODER_TARGET}: "
# The options that the target of encoders has too: the limits of a micro-batch, and its programs.
_LIMITS = {"max_batch_size": "max_batch_texts", "max_num_tokens": "max_batch_tokens"}
_OF_ENCODERS = (*_LIMITS, *(name for name in _PROGRAM_OPTIONS if name != "examples_dir"))


def tensorrt_llm_options(command: Any) -> Any:
    """Add the target's flags to a command; `tensorrt_llm_settings` reads them."""
    starts = {"docker": "GPU only: where it is built"}
    return section("GPU only: TensorRT-LLM", *_recipe_options(), *_program_options(), starts=starts)(command)


def _recipe_options() -> list[Callable[[Any], Any]]:
    options = {option.path: option for option in nested_options(Recipe)}
    return [
        click.option(
            "--recipe",
            type=_DIRECTORY,
            help=_PREFIX + "Recipe: a YAML file with all build settings; see docs/tensorrt-llm.md. Flags override it.",
        ),
        click.option(
            "--set",
            "recipe_fields",
            multiple=True,
            metavar="FIELD=VALUE",
            help=_PREFIX + "A field of the recipe, with a YAML value (repeatable): lora.max_rank=16.",
        ),
        *(
            replace(option, name=name.replace("_", "-"), help=_PREFIX + option.help + _note(name)).add_to
            for name, path in _FIELDS.items()
            if (option := options[tuple(path.split("."))])
        ),
        click.option("--lora-dir", type=_DIRECTORY, multiple=True, help=_PREFIX + "LoRA adapter (repeatable)."),
    ]


def _note(name: str) -> str:
    if name in _LIMITS:
        unit = name.removeprefix("max_").removeprefix("num_").replace("batch_size", "texts")
        return f" {ENCODER_TARGET}: {unit} of the largest micro-batch."
    return f" Same as {_SAME_AS[name][1]}." if name in _SAME_AS else ""


def _program_options() -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--docker",
            is_flag=True,
            help=_PREFIX_OF_BOTH + "Run NVIDIA's programs in a container instead of on this machine.",
        ),
        click.option("--image", help=f"{_PREFIX_OF_BOTH}Image of the container.  [default: {DEFAULT_CONTAINER.image}]"),
        click.option(
            "--docker-gpus", help=_PREFIX_OF_BOTH + "GPUs of the container, as for docker run --gpus.  [default: all]"
        ),
        click.option("--docker-shm-size", help=_PREFIX_OF_BOTH + "Shared memory of the container.  [default: 8g]"),
        click.option(
            "--examples-dir",
            type=_DIRECTORY,
            help=_PREFIX + "Directory of TensorRT-LLM's examples.  [default: /app/tensorrt_llm/examples]",
        ),
    ]


def tensorrt_llm_settings(target: str, options: dict[str, Any]) -> object:
    """Remove the target's flags from `options` and return its settings; None for another target.

    Raises click.UsageError for a flag of another target, BuildError for an invalid recipe.
    """
    names = (*_FIELDS, "recipe", "recipe_fields", "lora_dir", *_PROGRAM_OPTIONS)
    flags = {name: value for name in names if (value := options.pop(name)) not in (None, ())}
    # --docker defaults to False, which is the same as not given.
    flags = {name: value for name, value in flags.items() if name != "docker" or value}
    if target == TARGET:
        _refuse_duplicates(flags, options)
        return _settings(flags)
    allowed = _OF_ENCODERS if target == ENCODER_TARGET else ()
    if other := [name for name in flags if name not in allowed]:
        flag = {"recipe_fields": "set"}.get(other[0], other[0]).replace("_", "-")
        raise click.UsageError(f"--{flag} is for --target {TARGET}, not {target}; leave it out.")
    return _encoder_settings(flags) if target == ENCODER_TARGET else None


def _encoder_settings(flags: dict[str, Any]) -> object:
    from build_engines.encoders.tensorrt_target import TensorRtSettings

    settings = TensorRtSettings(programs=_programs(flags))
    limits = {field: flags[name] for name, field in _LIMITS.items() if name in flags}
    return replace(settings, limits=settings.limits.model_copy(update=limits))


def _refuse_duplicates(flags: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse two flags that set the same field; otherwise one would silently override the other."""
    for name, (other, alias) in _SAME_AS.items():
        if name in flags and options.get(other) is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} and {alias} set the same field; leave one of them out.")
    if "dtype" in flags and options.get("precision") in ("bf16", "fp16", "fp32"):
        raise click.UsageError("--dtype and --precision set the same field; leave one of them out.")


def _settings(flags: dict[str, Any]) -> object:
    from build_engines.tensorrt_llm.target import TensorRtLlmSettings

    fields = dict(_pair(pair) for pair in flags.get("recipe_fields", ()))
    fields |= {path: flags[name] for name, path in _FIELDS.items() if name in flags}
    if "lora_dir" in flags:
        fields["lora.directories"] = list(flags["lora_dir"])
    return TensorRtLlmSettings(read_recipe(flags.get("recipe"), fields), _programs(flags))


def _pair(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--set {pair} is not of the form FIELD=VALUE.")
    return name, parse_value(name, value)


def _programs(flags: dict[str, Any]) -> Any:
    from build_engines.tensorrt_llm.programs import EXAMPLES, Docker, Native

    examples = flags.get("examples_dir", EXAMPLES)
    if not flags.get("docker"):
        container_only = [name for name in ("image", "docker_gpus", "docker_shm_size") if name in flags]
        if container_only:
            raise click.UsageError(
                f"--{container_only[0].replace('_', '-')} needs --docker; add that, or leave it out."
            )
        return Native(examples)
    words = {"image": "image", "docker_gpus": "gpus", "docker_shm_size": "shared_memory"}
    return Docker(examples=examples, **{word: flags[name] for name, word in words.items() if name in flags})


def show_commands(directory: Path, out: Path, options: Any, as_json: bool) -> None:
    """Print the commands that build the checkpoint `directory` into `out`, as shell lines or as JSON."""
    from build_engines.target import find_target
    from build_engines.tensorrt_llm.target import TensorRtLlmTarget, dry_run

    target = find_target(options)
    assert isinstance(target, TensorRtLlmTarget)
    plan = dry_run(directory, out, target)
    for note in plan.notes:
        click.echo(f"Note: {note}", err=True)
    if not as_json:
        click.echo("\n".join(plan.lines))
        return
    commands = [
        {"step": command.step, "arguments": list(command.arguments), "environment": dict(command.environment)}
        for command in plan.commands
    ]
    click.echo(json.dumps({"environment": plan.environment, "commands": commands, "lines": plan.lines}, indent=2))


def show_encoder_command(directory: Path, out: Path, options: Any) -> None:
    """Print the command that builds the plan of the encoder `directory` in `out`."""
    from build_engines.encoders.settings import find_task
    from build_engines.encoders.tensorrt_target import TensorRtEncoderTarget, dry_run
    from build_engines.target import find_target

    target = find_target(replace(options, task=options.task or find_task(directory)))
    assert isinstance(target, TensorRtEncoderTarget)
    click.echo(dry_run(directory, out, target))

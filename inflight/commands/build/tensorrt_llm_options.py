"""What `inflight build --target tensorrt-llm` is told beyond the other targets: a recipe, and where programs run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from build_engines.containers import DEFAULT_CONTAINER
from build_engines.tensorrt_llm.recipe import Dtype, KvDtype, Quantization, SpeculationMode

TARGET = "tensorrt-llm"
_COUNT = click.IntRange(min=1)
_DIRECTORY = click.Path(path_type=Path)
# Flags for what is decided most often, and the recipe's field of each; all others have --set.
_FIELDS: dict[str, tuple[str, Any, str]] = {
    "dtype": ("dtype", click.Choice(get_args(Dtype)), "Of weights that aren't quantized."),
    "quantization": ("quantization", click.Choice(get_args(Quantization)), "The same as --precision, in full."),
    "kv_cache_dtype": ("kv_cache_dtype", click.Choice(get_args(KvDtype)), "The same as --kv-cache-precision."),
    "tensor_parallel": ("tensor_parallel", _COUNT, "GPUs that share each layer."),
    "pipeline_parallel": ("pipeline_parallel", _COUNT, "GPUs that each hold a part of the layers."),
    "max_batch_size": ("limits.max_batch_size", _COUNT, "Requests that run at once."),
    "max_input_len": ("limits.max_input_len", _COUNT, "Tokens of a prompt."),
    "max_num_tokens": ("limits.max_num_tokens", _COUNT, "Tokens that one step computes, over all requests."),
    "opt_num_tokens": ("limits.opt_num_tokens", _COUNT, "Tokens of one step that kernels are chosen for."),
    "max_beam_width": ("limits.max_beam_width", _COUNT, "Beams of one request."),
    "speculative_decoding_mode": (
        "speculation.mode",
        click.Choice(get_args(SpeculationMode)),
        "Where drafts come from.",
    ),
    "max_draft_len": ("speculation.max_draft_len", _COUNT, "Draft tokens of one request in one step."),
    "draft_model": ("speculation.model", _DIRECTORY, "The drafting model or heads that are compiled in."),
    "max_lora_rank": ("lora.max_rank", _COUNT, "The highest rank of an adapter."),
    "calibration_dataset": ("calibration.dataset", str, "A directory of texts to quantize with."),
    "workers": ("workers", _COUNT, "GPUs that build at once."),
}
_SWITCHES = {
    "paged_context_fmha": "Prompts are read from the paged KV cache.",
    "fp8_context_fmha": "Attention of prompts in fp8.",
    "kv_cache_reuse": "Prefixes seen before are not computed again.",
    "chunked_context": "Long prompts are computed in chunks.",
    "multiple_profiles": "Kernels are chosen for several sizes of a step.",
}
_PROGRAM_OPTIONS = ("docker", "image", "docker_gpus", "docker_shm_size", "examples_dir")
# What every target calls otherwise.
_SAME_AS = {"quantization": "precision", "kv_cache_dtype": "kv_precision"}
_PREFIX = "tensorrt-llm: "


def tensorrt_llm_options(command: Any) -> Any:
    """Add the target's flags to a command; `tensorrt_llm_settings` reads them."""
    for option in reversed([*_recipe_options(), *_program_options()]):
        command = option(command)
    return command


def _recipe_options() -> list[Callable[[Any], Any]]:
    fields = [
        click.option(f"--{name.replace('_', '-')}", type=kind, help=_PREFIX + said)
        for name, (_, kind, said) in _FIELDS.items()
    ]
    return [
        click.option(
            "--recipe",
            type=_DIRECTORY,
            help=_PREFIX + "A YAML file with all that shapes the engine; see docs/tensorrt-llm.md. Flags win.",
        ),
        click.option(
            "--set",
            "recipe_fields",
            envvar="INFLIGHT_BUILD_SET",
            multiple=True,
            metavar="FIELD=VALUE",
            help=_PREFIX + "A field of the recipe (lora.max_rank=16); the value is YAML. Can be repeated.",
        ),
        *fields,
        *(
            click.option(f"--{flag}/--no-{flag}", default=None, help=_PREFIX + said)
            for name, said in _SWITCHES.items()
            if (flag := name.replace("_", "-"))
        ),
        click.option("--lora-dir", type=_DIRECTORY, multiple=True, help=_PREFIX + "A LoRA adapter. Can be repeated."),
    ]


def _program_options() -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--docker", is_flag=True, help=_PREFIX + "Run NVIDIA's programs in a container, not on this machine."
        ),
        click.option("--image", help=f"{_PREFIX}The container's image.  [default: {DEFAULT_CONTAINER.image}]"),
        click.option("--docker-gpus", help=_PREFIX + "The container's GPUs, in docker's words.  [default: all]"),
        click.option("--docker-shm-size", help=_PREFIX + "The container's shared memory.  [default: 8g]"),
        click.option(
            "--examples-dir",
            type=_DIRECTORY,
            help=_PREFIX + "The examples of TensorRT-LLM.  [default: /app/tensorrt_llm/examples]",
        ),
    ]


def tensorrt_llm_settings(target: str, options: dict[str, Any]) -> object:
    """Take the target's flags out of `options`, and return its settings; None for another target.

    Raises click.UsageError for a flag that is not for this target, BuildError for a recipe that makes no sense.
    """
    names = (*_FIELDS, *_SWITCHES, "recipe", "recipe_fields", "lora_dir", *_PROGRAM_OPTIONS)
    given = {name: value for name in names if (value := options.pop(name)) not in (None, ())}
    # Without --docker nothing was said.
    given = {name: value for name, value in given.items() if name != "docker" or value}
    if target == TARGET:
        _refuse_duplicates(given, options)
        return _settings(given)
    if given:
        flag = {"recipe_fields": "set"}.get(first := next(iter(given)), first).replace("_", "-")
        raise click.UsageError(f"--{flag} is for --target {TARGET}, not for {target}; leave it out.")
    return None


def _refuse_duplicates(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Two flags for one field would let one of them win in silence."""
    for name, other in _SAME_AS.items():
        if name in given and options.get(other) is not None:
            said = {"kv_precision": "kv-cache-precision"}.get(other, other).replace("_", "-")
            raise click.UsageError(f"--{name.replace('_', '-')} and --{said} say the same; leave one of them out.")
    if "dtype" in given and options.get("precision") in ("bf16", "fp16", "fp32"):
        raise click.UsageError("--dtype and --precision say the same; leave one of them out.")


def _settings(given: dict[str, Any]) -> object:
    from build_engines.tensorrt_llm.recipe_file import read_recipe
    from build_engines.tensorrt_llm.target import TensorRtLlmSettings

    fields = dict(_pair(one) for one in given.get("recipe_fields", ()))
    fields |= {field: given[name] for name, (field, _, _) in _FIELDS.items() if name in given}
    fields |= {name: given[name] for name in _SWITCHES if name in given}
    if "lora_dir" in given:
        fields["lora.directories"] = list(given["lora_dir"])
    return TensorRtLlmSettings(read_recipe(given.get("recipe"), fields), _programs(given))


def _pair(one: str) -> tuple[str, Any]:
    from build_engines.tensorrt_llm.recipe_file import parse_value

    name, equals, value = one.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--set {one} is no field with a value; write FIELD=VALUE.")
    return name, parse_value(name, value)


def _programs(given: dict[str, Any]) -> Any:
    from build_engines.tensorrt_llm.programs import EXAMPLES, Docker, Native

    examples = given.get("examples_dir", EXAMPLES)
    if not given.get("docker"):
        inside = [name for name in ("image", "docker_gpus", "docker_shm_size") if name in given]
        if inside:
            raise click.UsageError(f"--{inside[0].replace('_', '-')} is for --docker; add that, or leave it out.")
        return Native(examples)
    words = {"image": "image", "docker_gpus": "gpus", "docker_shm_size": "shared_memory"}
    return Docker(examples=examples, **{word: given[name] for name, word in words.items() if name in given})


def show_commands(directory: Path, out: Path, options: Any, as_json: bool) -> None:
    """Print what building the checkpoint `directory` into `out` would run, as lines of a shell or as JSON."""
    from build_engines.target import find_target
    from build_engines.tensorrt_llm.dry_run import dry_run
    from build_engines.tensorrt_llm.target import TensorRtLlmTarget

    target = find_target(options)
    assert isinstance(target, TensorRtLlmTarget)
    found = dry_run(directory, out, target)
    for note in found.notes:
        click.echo(f"Note: {note}", err=True)
    if not as_json:
        click.echo("\n".join(found.lines))
        return
    said = [
        {"step": one.step, "arguments": list(one.arguments), "environment": dict(one.environment)}
        for one in found.commands
    ]
    click.echo(json.dumps({"environment": found.environment, "commands": said, "lines": found.lines}, indent=2))

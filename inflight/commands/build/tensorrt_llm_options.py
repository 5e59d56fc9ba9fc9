"""Options of `inflight build --target tensorrt-llm`: a recipe, and where to run NVIDIA's programs."""

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
# Flags for the most common settings and the recipe field of each; use --set for all others.
_FIELDS: dict[str, tuple[str, Any, str]] = {
    "dtype": ("dtype", click.Choice(get_args(Dtype)), "Type of weights that are not quantized."),
    "quantization": ("quantization", click.Choice(get_args(Quantization)), "Long form of --precision."),
    "kv_cache_dtype": ("kv_cache_dtype", click.Choice(get_args(KvDtype)), "Alias of --kv-cache-precision."),
    "tensor_parallel": ("tensor_parallel", _COUNT, "Tensor parallel size: GPUs that share each layer."),
    "pipeline_parallel": (
        "pipeline_parallel",
        _COUNT,
        "Pipeline parallel size: GPUs that each hold some of the layers.",
    ),
    "max_batch_size": ("limits.max_batch_size", _COUNT, "Maximum concurrent requests."),
    "max_input_len": ("limits.max_input_len", _COUNT, "Maximum tokens of a prompt."),
    "max_num_tokens": ("limits.max_num_tokens", _COUNT, "Maximum tokens per step, over all requests."),
    "opt_num_tokens": ("limits.opt_num_tokens", _COUNT, "Tokens per step that kernels are tuned for."),
    "max_beam_width": ("limits.max_beam_width", _COUNT, "Maximum beams of one request."),
    "speculative_decoding_mode": (
        "speculation.mode",
        click.Choice(get_args(SpeculationMode)),
        "Speculative decoding: source of the drafts.",
    ),
    "max_draft_len": ("speculation.max_draft_len", _COUNT, "Maximum draft tokens per request and step."),
    "draft_model": ("speculation.model", _DIRECTORY, "Draft model or heads to compile into the engine."),
    "max_lora_rank": ("lora.max_rank", _COUNT, "Highest rank of a LoRA adapter."),
    "calibration_dataset": ("calibration.dataset", str, "Directory of texts to calibrate the quantization with."),
    "workers": ("workers", _COUNT, "Number of GPUs that build in parallel."),
}
_SWITCHES = {
    "paged_context_fmha": "Let the prompt phase read from the paged KV cache.",
    "fp8_context_fmha": "Compute the attention of prompts in fp8.",
    "kv_cache_reuse": "Reuse the KV cache of known prefixes.",
    "chunked_context": "Compute long prompts in chunks.",
    "multiple_profiles": "Tune kernels for several step sizes.",
}
_PROGRAM_OPTIONS = ("docker", "image", "docker_gpus", "docker_shm_size", "examples_dir")
# Options that all targets share under another name.
_SAME_AS = {"quantization": "precision", "kv_cache_dtype": "kv_precision"}
_PREFIX = "tensorrt-llm: "


def tensorrt_llm_options(command: Any) -> Any:
    """Add the target's flags to a command; `tensorrt_llm_settings` reads them."""
    for option in reversed([*_recipe_options(), *_program_options()]):
        command = option(command)
    return command


def _recipe_options() -> list[Callable[[Any], Any]]:
    fields = [
        click.option(f"--{name.replace('_', '-')}", type=kind, help=_PREFIX + help_text)
        for name, (_, kind, help_text) in _FIELDS.items()
    ]
    return [
        click.option(
            "--recipe",
            type=_DIRECTORY,
            help=_PREFIX + "Recipe: a YAML file with all build settings; see docs/tensorrt-llm.md. Flags override it.",
        ),
        click.option(
            "--set",
            "recipe_fields",
            envvar="INFLIGHT_BUILD_SET",
            multiple=True,
            metavar="FIELD=VALUE",
            help=_PREFIX + "A field of the recipe, with a YAML value (repeatable): lora.max_rank=16.",
        ),
        *fields,
        *(
            click.option(f"--{flag}/--no-{flag}", default=None, help=_PREFIX + help_text)
            for name, help_text in _SWITCHES.items()
            if (flag := name.replace("_", "-"))
        ),
        click.option("--lora-dir", type=_DIRECTORY, multiple=True, help=_PREFIX + "LoRA adapter (repeatable)."),
    ]


def _program_options() -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--docker", is_flag=True, help=_PREFIX + "Run NVIDIA's programs in a container instead of on this machine."
        ),
        click.option("--image", help=f"{_PREFIX}Image of the container.  [default: {DEFAULT_CONTAINER.image}]"),
        click.option(
            "--docker-gpus", help=_PREFIX + "GPUs of the container, as for docker run --gpus.  [default: all]"
        ),
        click.option("--docker-shm-size", help=_PREFIX + "Shared memory of the container.  [default: 8g]"),
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
    names = (*_FIELDS, *_SWITCHES, "recipe", "recipe_fields", "lora_dir", *_PROGRAM_OPTIONS)
    given = {name: value for name in names if (value := options.pop(name)) not in (None, ())}
    # --docker defaults to False, which is the same as not given.
    given = {name: value for name, value in given.items() if name != "docker" or value}
    if target == TARGET:
        _refuse_duplicates(given, options)
        return _settings(given)
    if given:
        flag = {"recipe_fields": "set"}.get(first := next(iter(given)), first).replace("_", "-")
        raise click.UsageError(f"--{flag} is for --target {TARGET}, not {target}; leave it out.")
    return None


def _refuse_duplicates(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse two flags that set the same field; otherwise one would silently override the other."""
    for name, other in _SAME_AS.items():
        if name in given and options.get(other) is not None:
            alias = {"kv_precision": "kv-cache-precision"}.get(other, other).replace("_", "-")
            raise click.UsageError(
                f"--{name.replace('_', '-')} and --{alias} set the same field; leave one of them out."
            )
    if "dtype" in given and options.get("precision") in ("bf16", "fp16", "fp32"):
        raise click.UsageError("--dtype and --precision set the same field; leave one of them out.")


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
        raise click.UsageError(f"--set {one} is not of the form FIELD=VALUE.")
    return name, parse_value(name, value)


def _programs(given: dict[str, Any]) -> Any:
    from build_engines.tensorrt_llm.programs import EXAMPLES, Docker, Native

    examples = given.get("examples_dir", EXAMPLES)
    if not given.get("docker"):
        container_only = [name for name in ("image", "docker_gpus", "docker_shm_size") if name in given]
        if container_only:
            raise click.UsageError(
                f"--{container_only[0].replace('_', '-')} needs --docker; add that, or leave it out."
            )
        return Native(examples)
    words = {"image": "image", "docker_gpus": "gpus", "docker_shm_size": "shared_memory"}
    return Docker(examples=examples, **{word: given[name] for name, word in words.items() if name in given})


def show_commands(directory: Path, out: Path, options: Any, as_json: bool) -> None:
    """Print the commands that build the checkpoint `directory` into `out`, as shell lines or as JSON."""
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
    commands = [
        {"step": one.step, "arguments": list(one.arguments), "environment": dict(one.environment)}
        for one in found.commands
    ]
    click.echo(json.dumps({"environment": found.environment, "commands": commands, "lines": found.lines}, indent=2))

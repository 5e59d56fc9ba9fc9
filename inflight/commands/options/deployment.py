"""Options of a deployment, shared by `serve` and `assemble`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from inflight.commands.option_sections import Decorated, section
from inflight.commands.options.config_file import ModelName
from inflight.commands.options.numbers import Ratio
from inflight.deploy.repository.model_names import BatchedTask
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.deploy.repository.typed_parameters import load_parameters_file

_ENCODERS: Mapping[BatchedTask, str] = {
    "embed": "that embeds texts",
    "rerank": "that ranks documents",
    "classify": "that classifies texts",
    "transcribe": "that transcribes speech",
    "text2text": "that translates or summarizes texts",
}


def deployment_options(command: str) -> Callable[[Decorated], Decorated]:
    """Add the deployment options to the function of `command`; `deployment_options_from` reads them."""
    return section(
        "Engine",
        click.option("--kv-cache-tokens", type=click.IntRange(1), help="Size of the KV cache.  [default: by memory]"),
        click.option("--max-num-sequences", type=click.IntRange(1), help="Maximum concurrent requests."),
        click.option("--max-num-tokens", type=click.IntRange(1), help="Maximum tokens per step."),
        click.option(
            "--itl-bound",
            type=Ratio(),
            metavar="RATIO",
            help="How many times as long a step may take because of prompts beside running answers; 0: no bound."
            "  [default: 2]",
        ),
        click.option(
            "--max-queue-size", type=click.IntRange(0, 1_000_000), help="Maximum queued requests; 0: unlimited."
        ),
        click.option("--no-kv-cache-reuse", is_flag=True, help="Do not reuse the KV cache of known prefixes."),
        click.option(
            "--share-prefixes",
            is_flag=True,
            help="Let tenants reuse each other's prefixes, which they may then notice.",
        ),
        click.option(
            "--decoupled/--no-decoupled",
            default=True,
            show_default=True,
            help="Allow streaming. With --no-decoupled, clients without gRPC streaming can use tensorrt_llm.",
        ),
        click.option(
            "--draft-engine",
            type=click.Path(path_type=Path),
            help="Engine directory of the draft model, for speculative decoding.",
        ),
        click.option(
            "--prompt-lookup", is_flag=True, help="Speculative decoding by prompt lookup; needs no draft model."
        ),
        click.option("--num-draft-tokens", type=click.IntRange(1), help="Tokens per draft."),
        click.option(
            "--lora",
            "adapters",
            type=click.Path(path_type=Path),
            multiple=True,
            help="LoRA adapter (directory of PEFT, or safetensors; repeatable); the first is lora_task_id 1.",
        ),
        click.option(
            "--lora-dir",
            "adapter_directory",
            type=click.Path(path_type=Path),
            help="Directory of LoRA adapters that may be loaded while the server runs (/v1/load_lora_adapter).",
        ),
        click.option(
            "--stream-interval",
            type=click.IntRange(1, 100),
            metavar="N",
            help="Tokens per response of a stream, after its first four; more save processor time.  [default: 1]",
        ),
        click.option(
            "--threads",
            type=click.IntRange(1, 1024),
            help="Threads of the engine on the CPU.  [default: one for each core]",
        ),
        click.option(
            "--reproducible",
            is_flag=True,
            help="Give the same request the same answer, whatever runs beside it; needs an engine at fp32.",
        ),
        click.option(
            "--wrap-token-ids", is_flag=True, help="Accept prompts of random token ids, as benchmarks send them."
        ),
        *(
            click.option(
                f"--{task}",
                metavar="MODEL" if command == "serve" else "ENGINE",
                type=ModelName(),
                help=f"Encoder {what}, to serve as well"
                + (": an engine, a checkpoint or a name, as MODEL." if command == "serve" else "."),
            )
            for task, what in _ENCODERS.items()
        ),
        click.option(
            "--encoder-batch-tokens",
            "max_batch_tokens",
            type=click.IntRange(1),
            help="Maximum tokens of an encoder's micro-batch: its texts times the longest of them."
            "  [default: 256 for each thread; text2text: 2048; on a GPU 8192, or the engine's limit]",
        ),
        click.option(
            "--encoder-batch-texts",
            "max_batch_texts",
            type=click.IntRange(1),
            help="Maximum texts of an encoder's micro-batch.  [default: 256; clips: 2]",
        ),
        click.option(
            "--encoder-queue-size",
            "max_queue_texts",
            type=click.IntRange(1),
            help="Maximum texts that wait for an encoder.  [default: 16384]",
        ),
        click.option(
            "--encoder-max-wait-ms",
            "max_wait_ms",
            type=click.IntRange(1),
            help="A text that has waited for so many milliseconds goes first.  [default: 5000]",
        ),
        click.option(
            "--encoder-requests",
            "num_requests",
            type=click.IntRange(1),
            help="Micro-batches that an encoder computes at the same time, on the same threads."
            "  [default: 1; speech and text2text: 2]",
        ),
        click.option(
            "--encoder-threads",
            type=click.IntRange(1, 1024),
            help="Threads of each encoder on the CPU.  [default: one for each core]",
        ),
        click.option(
            "--served-model-name",
            metavar="NAME",
            help="Name of the model for applications.  [default: the checkpoint's name]",
        ),
        click.option(
            "--set",
            "settings",
            metavar="NAME=VALUE",
            multiple=True,
            help="Parameter by its TensorRT-LLM name (repeatable): kv_cache_free_gpu_mem_fraction=0.8.",
        ),
        click.option(
            "--parameters",
            "settings_file",
            metavar="FILE.yaml",
            type=click.Path(path_type=Path),
            help="YAML file with parameters by their TensorRT-LLM names; --set overrides it.",
        ),
        starts={"embed": "Encoders", "served_model_name": "Model", "settings": "GPU only"},
    )


def deployment_options_from(options: dict[str, Any]) -> DeploymentOptions:
    """Return the deployment options that `deployment_options` added.

    Raises DeployError `invalid_parameter` for a parameter file that cannot be read, click's errors for --set.
    """
    file: Path | None = options.pop("settings_file")
    settings = {} if file is None else load_parameters_file(file)
    settings |= _pairs(options.pop("settings"))
    of_encoders = {field.name: options.pop(field.name) for field in fields(EncoderOptions)}
    named = {task: Path(of_encoders.pop(task)) for task in _ENCODERS if of_encoders[task] is not None}
    encoders = EncoderOptions(**of_encoders).with_directories(named)
    reuse = not options.pop("no_kv_cache_reuse")
    return DeploymentOptions(kv_cache_reuse=reuse, settings=settings, encoders=encoders, **options)


def _pairs(words: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in words:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE.", param_hint="'--set'")
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice; give it once.", param_hint="'--set'")
        pairs[name] = value
    return pairs

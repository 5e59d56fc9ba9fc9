"""Makes a deployable model repository from the committed one, an engine directory and options."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.manifest import Manifest
from inflight.deploy import kv_budget, model_configs
from inflight.deploy.errors import DeployError

ENGINE_MODEL = "tensorrt_llm"


@dataclass(frozen=True)
class DeploymentOptions:
    """What may differ between deployments of one engine; None leaves what is committed, or the default.

    `kv_cache_tokens`, `max_num_tokens` (per step) and `max_num_sequences` (in flight) bound the engine.
    `parameters` sets further ones, by model and key: {"tensorrt_llm": {"inflight_engine": "fake"}}.
    """

    kv_cache_tokens: int | None = None
    max_num_sequences: int | None = None
    max_num_tokens: int | None = None
    kv_cache_reuse: bool = True
    chunked_context: bool = True
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def committed_repository() -> Path:
    """The model repository as it is committed: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parent
    for place in (here / "model_repository", here.parent.parent / "model_repository"):
        if (place / "ensemble" / "config.pbtxt").is_file():
            return place
    raise DeployError(f"The model repository is missing beside {here}; install inflight again.", "server_start_failed")


def assemble(
    engine: Path, manifest: Manifest, out: Path, options: DeploymentOptions, source: Path | None = None
) -> model_configs.Configs:
    """Write a deployable repository to `out`, which must not exist, and return its configurations.

    Raises DeployError for a parameter that no model declares, and a repository whose ensemble does not fit its models.
    """
    source = source or committed_repository()
    configs = model_configs.load(source)
    for model, values in _parameters(engine.resolve(), manifest, options, configs).items():
        if model not in configs:
            raise DeployError(
                f"There is no model {model!r} to set parameters of; there are {', '.join(configs)}.",
                "invalid_parameter",
            )
        model_configs.set_parameters(configs[model], values)
    model_configs.check(configs)
    for name in configs:
        shutil.copytree(source / name, out / name, ignore=shutil.ignore_patterns("__pycache__", ".gitkeep"))
    model_configs.write(configs, out)
    return configs


def _parameters(
    engine: Path, manifest: Manifest, options: DeploymentOptions, configs: model_configs.Configs
) -> dict[str, dict[str, str]]:
    """Every parameter to set, by model: the engine's place, its bounds, and whatever was asked for beyond."""
    sequences = options.max_num_sequences or _committed_number(configs, "max_num_sequences")
    if options.kv_cache_tokens is None:
        tokens = kv_budget.default_tokens(manifest, sequences)
    else:
        tokens = kv_budget.blocks(options.kv_cache_tokens)
    bounds = {
        "gpt_model_path": str(engine),
        "max_tokens_in_paged_kv_cache": str(tokens),
        "max_num_sequences": str(sequences),
        "enable_kv_cache_reuse": _flag(options.kv_cache_reuse),
        "enable_chunked_context": _flag(options.chunked_context),
    }
    if options.max_num_tokens is not None:
        bounds["max_num_tokens"] = str(options.max_num_tokens)
    values = {
        "preprocessing": {"tokenizer_dir": str(engine)},
        ENGINE_MODEL: bounds,
        "postprocessing": {"tokenizer_dir": str(engine)},
    }
    for model, more in options.parameters.items():
        values[model] = {**values.get(model, {}), **more}
    return values


def _committed_number(configs: Mapping[str, Any], key: str) -> int:
    return int(configs[ENGINE_MODEL].parameters[key].string_value)


def _flag(value: bool) -> str:
    return "true" if value else "false"

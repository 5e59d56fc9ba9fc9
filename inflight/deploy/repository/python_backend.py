"""The model repository of engines in inflight's python models: OpenVINO, and TensorRT-LLM's LLM API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.kv_cache import round_up_to_blocks
from build_engines.manifest import Manifest
from inflight.deploy.errors import invalid
from inflight.deploy.repository import kv_budget, model_configs
from inflight.deploy.repository.model_configs import Configs
from inflight.deploy.repository.model_names import ENGINE_MODEL, option_name, pbtxt_bool
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.repository.typed_parameters import Instances, Positive, TypedParameters

_FLAGS = ("share_prefixes", "prompt_lookup", "wrap_token_ids", "reproducible")
"""Options that are parameters of the engine's model by their own names."""
_LLMAPI_SPECULATION = "the engine directory's model.yaml configures speculation"
_LLMAPI_UNSUPPORTED = {
    "draft_engine": _LLMAPI_SPECULATION,
    "prompt_lookup": _LLMAPI_SPECULATION,
    "num_draft_tokens": _LLMAPI_SPECULATION,
    "threads": "it computes on the GPU",
    "itl_bound": "the library plans its steps",
    "reproducible": "its kernels depend on what runs beside a request",
    "share_prefixes": "the library's prefixes are shared by all",
}


_NUMBERS = ("stream_interval", "itl_bound", "threads", "num_draft_tokens", "max_queue_size")
"""Options that are parameters of the same name."""


class PythonBackendParameters(TypedParameters):
    """Parameters that can be set by upstream's names; None keeps the committed value."""

    exclude_input_in_output: bool | None = None
    cancellation_check_period_ms: Positive | None = None
    stats_check_period_ms: Positive | None = None
    add_special_tokens: bool | None = None
    skip_special_tokens: bool | None = None
    preprocessing_instance_count: Instances | None = None

    def by_model(self) -> dict[str, dict[str, str]]:
        """Return the config.pbtxt values of the set parameters, by model."""
        texts = self.pbtxt_values()
        places = {"add_special_tokens": "preprocessing", "skip_special_tokens": "postprocessing"}
        texts.pop("preprocessing_instance_count", None)
        by_model: dict[str, dict[str, str]] = {}
        for name, text in texts.items():
            by_model.setdefault(places.get(name, ENGINE_MODEL), {})[name] = text
        return by_model


def configure_models(configs: Configs, engine: Path, manifest: Manifest, options: DeploymentOptions) -> None:
    """Apply the engine's and the options' values to the committed configurations. Raises DeployError."""
    asked = PythonBackendParameters.read(options.settings, "this target")
    for model, values in _parameters(engine.resolve(), manifest, options, asked, configs).items():
        model_configs.set_parameters(configs[model], values)
    if asked.preprocessing_instance_count is not None:
        configs["preprocessing"].instance_group[0].count = asked.preprocessing_instance_count


def check_python_backend_options(options: DeploymentOptions, manifest: Manifest) -> None:
    """Raise DeployError `invalid_parameter` for options that would have no effect."""
    PythonBackendParameters.read(options.settings, f"target {manifest.target}")
    for name, why in (_LLMAPI_UNSUPPORTED if manifest.target == "llmapi" else {}).items():
        if getattr(options, name):
            raise invalid(f"The option {option_name(name)} can't be used with the LLM API: {why}; leave it out.")


def _parameters(
    engine: Path, manifest: Manifest, options: DeploymentOptions, asked: PythonBackendParameters, configs: Configs
) -> dict[str, dict[str, str]]:
    """Return all parameters to set, by model: the engine's path, its limits, and further options."""
    values = {
        "preprocessing": {"tokenizer_dir": str(engine)},
        ENGINE_MODEL: {**_engine_values(engine, options), **_bounds(manifest, options, configs)},
        "postprocessing": {"tokenizer_dir": str(engine)},
    }
    for more in (asked.by_model(), options.parameters):
        for model, texts in more.items():
            values[model] = {**values.get(model, {}), **texts}
    skip = values["postprocessing"].get("skip_special_tokens")
    if skip is not None:
        values[ENGINE_MODEL].setdefault("skip_special_tokens", skip)
    return values


def _engine_values(engine: Path, options: DeploymentOptions) -> dict[str, str]:
    values = {
        "gpt_model_path": str(engine),
        "enable_kv_cache_reuse": pbtxt_bool(options.kv_cache_reuse),
        "enable_chunked_context": pbtxt_bool(options.chunked_context),
        **{name: pbtxt_bool(getattr(options, name)) for name in _FLAGS},
        "lora_adapters": json.dumps([str(path.resolve()) for path in options.adapters]),
    }
    if options.adapter_directory is not None:
        values["lora_directory"] = str(options.adapter_directory.resolve())
    if options.draft_engine is not None:
        values["draft_model_path"] = str(options.draft_engine.resolve())
    numbers = {name: getattr(options, name) for name in _NUMBERS}
    return values | {name: str(number) for name, number in numbers.items() if number is not None}


def _bounds(manifest: Manifest, options: DeploymentOptions, configs: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine's limits. The LLM API sizes its KV cache by the GPU's memory, unless it gets a size."""
    sequences, step_tokens = options.max_num_sequences, options.max_num_tokens
    bounds = {}
    if manifest.target == "llmapi":
        bounds["inflight_engine"] = "llmapi"
        if manifest.limits is not None:
            sequences = sequences or manifest.limits.max_batch_size
            step_tokens = step_tokens or manifest.limits.max_num_tokens
    sequences = sequences or int(configs[ENGINE_MODEL].parameters["max_num_sequences"].string_value)
    if options.kv_cache_tokens is not None:
        bounds["max_tokens_in_paged_kv_cache"] = str(round_up_to_blocks(options.kv_cache_tokens))
    elif manifest.target == "openvino":
        draft = None if options.draft_engine is None else Manifest.read(options.draft_engine)
        bounds["max_tokens_in_paged_kv_cache"] = str(
            kv_budget.default_kv_cache_tokens(manifest, sequences, draft=draft)
        )
    bounds["max_num_sequences"] = str(sequences)
    if step_tokens is not None:
        bounds["max_num_tokens"] = str(step_tokens)
    return bounds

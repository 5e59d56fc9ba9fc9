"""The model repository for TensorRT-LLM's C++ backend, derived from the committed one.

It lacks what the backend doesn't support: additional tensors of `tensorrt_llm`, the ensemble's mappings of them, and
all of that model's parameters. The python models compensate for what the backend lacks: postprocessing remembers each
stream's last tokens, and preprocessing turns all end tokens but the first into stop words.
"""

from __future__ import annotations

import json
from pathlib import Path

from build_engines.manifest import Manifest
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository import model_configs
from inflight.deploy.repository.model_configs import Configs
from inflight.deploy.repository.model_names import CPP_BACKEND, ENGINE_MODEL, TEXT_MODELS, option_name, pbtxt_bool
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.repository.tensorrt_llm.parameters import TensorRtLlmParameters
from inflight.deploy.repository.tensorrt_llm.rules import check_parameters

XGRAMMAR_TOKENIZER_FILE = "xgrammar_tokenizer_info.json"
"""An engine's file with the tokenizer's vocabulary, for the backend's guided decoding."""

ADDED_INPUTS = (
    *("priority", "deadline_ms", "stop_words", "stream_key", "return_token_ids"),
    *("min_length", "random_seed", "output_log_probs", "num_top_log_probs", "return_prompt_log_probs"),
    *("min_p", "logit_bias_ids", "logit_bias_values", "allowed_token_ids"),
)
ADDED_OUTPUTS = (
    *("finish_reason", "num_responses", "num_cached_tokens", "token_ids", "chunk_header", "dropped_characters"),
    *("top_token_ids", "top_log_probs", "prompt_log_probs", "prompt_top_token_ids", "prompt_top_log_probs"),
)
"""What the embedded engine's `tensorrt_llm` has beyond upstream's, including older names of upstream's inputs."""
_LOGITS = ("context_logits", "generation_logits", "draft_logits")
_LOGITS_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}

_UNSUPPORTED = {
    "draft_engine": "such an engine is built with its drafts",
    "prompt_lookup": "speculation is part of such an engine",
    "num_draft_tokens": "the number of draft tokens is fixed when the engine is built",
    "adapters": "adapters come with requests (lora_weights, lora_config)",
    "adapter_directory": "adapters come with requests (lora_weights, lora_config)",
    "threads": "it computes on the GPU",
    "itl_bound": "TensorRT-LLM plans its steps",
    "share_prefixes": "TensorRT-LLM's prefixes are shared by all",
    "stream_interval": "its backend sends a response for each step",
    "reproducible": "its kernels depend on what runs beside a request",
    "wrap_token_ids": "TensorRT-LLM takes token ids as they are",
    "max_num_sequences": "the number of concurrent requests is fixed when the engine is built (max_batch_size)",
    "max_num_tokens": "the number of tokens per step is fixed when the engine is built",
}
"""Options without effect here, and why."""


def read_parameters(options: DeploymentOptions, engine: Path, manifest: Manifest) -> TensorRtLlmParameters:
    """Return the options' parameters, checked. Raises DeployError `invalid_parameter`."""
    for name, why in _UNSUPPORTED.items():
        if getattr(options, name):
            raise invalid(
                f"The option {option_name(name)} can't be used with an engine of TensorRT-LLM: {why}; leave it out."
            )
    user_values = options.given_parameters()
    suits = {}
    guides = engine.resolve() / XGRAMMAR_TOKENIZER_FILE
    speculates = manifest.features is not None and manifest.features.speculative_decoding_mode is not None
    # With speculation, a guide is not applied to each token, so guided decoding must be requested.
    asked = user_values.get("guided_decoding_backend", "none" if speculates else "xgrammar") == "xgrammar"
    # Only a file of the engine's manifest, which moves with the engine.
    if asked and XGRAMMAR_TOKENIZER_FILE in manifest.files:
        suits = {"xgrammar_tokenizer_info_path": str(guides)}
    parameters = TensorRtLlmParameters.from_given({**suits, **user_values}, manifest)
    check_parameters(parameters, user_values, manifest, decoupled=options.decoupled)
    return parameters


def configure_models(configs: Configs, engine: Path, manifest: Manifest, options: DeploymentOptions) -> None:
    """Convert the committed configurations to those of a deployment on the C++ backend."""
    parameters = read_parameters(options, engine, manifest)
    place = str(engine.resolve())
    model = configs[ENGINE_MODEL]
    model.backend = CPP_BACKEND
    model.instance_group[0].count = parameters.instances
    model_configs.replace_parameters(
        model,
        {
            **parameters.engine_model_parameters(),
            "gpt_model_path": place,
            # The C++ backend doesn't use it, but loads no engine without it.
            "tokenizer_dir": place,
            "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        },
    )
    policy = model.dynamic_batching.default_queue_policy
    policy.SetInParent()  # the backend reads it
    policy.max_queue_size = options.max_queue_size or 0
    model_configs.drop_tensors(model, inputs=ADDED_INPUTS, outputs=ADDED_OUTPUTS)
    model_configs.prune(configs)
    model_configs.set_data_type(configs, _LOGITS, _logits_type(engine))
    _configure_text_models(configs, place, parameters, options.decoupled)
    for name, values in options.parameters.items():
        model_configs.set_parameters(configs[name], values)


def _configure_text_models(
    configs: Configs, engine_path: str, parameters: TensorRtLlmParameters, decoupled: bool
) -> None:
    skip = pbtxt_bool(parameters.skip_special_tokens)
    preprocessing, postprocessing = configs["preprocessing"], configs["postprocessing"]
    preprocessing.instance_group[0].count = parameters.preprocessing_instance_count
    postprocessing.instance_group[0].count = parameters.postprocessing_instance_count
    model_configs.set_parameters(
        preprocessing,
        {
            "tokenizer_dir": engine_path,
            "add_special_tokens": pbtxt_bool(parameters.add_special_tokens),
            "end_ids_as_stop_words": "true",
            "assign_sequence_ids": pbtxt_bool(decoupled),
        },
    )
    model_configs.set_parameters(
        postprocessing,
        {"tokenizer_dir": engine_path, "skip_special_tokens": skip, "cache_context": pbtxt_bool(decoupled)},
    )
    # They distinguish the chunks of a request for several answers.
    for name in TEXT_MODELS:
        steps = {step.model_name: step for step in configs[name].ensemble_scheduling.step}
        after = steps["postprocessing"].input_map
        after["BATCH_INDEX"], after["SEQUENCE_INDEX"] = "batch_index", "sequence_index"
        # The first step decides whether the answer streams, since the last step gets only the engine's outputs.
        steps["preprocessing"].input_map["STREAM"] = "stream"


def _logits_type(engine: Path) -> str:
    """Return the logits type in the engine's config.json: trtllm-build's --logits_dtype, float32 without it."""
    try:
        config = json.loads((engine / "config.json").read_text(encoding="utf-8"))
        return _LOGITS_TYPES[config.get("pretrained_config", {}).get("logits_dtype", "float32")]
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise DeployError(
            f"{engine / 'config.json'} does not give the type of the engine's logits ({type(error).__name__}:"
            f" {error}); build the engine again.",
            "engine_damaged",
        ) from error

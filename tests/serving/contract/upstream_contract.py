"""TensorRT-LLM's models and ours as plain facts that can be compared, and every difference with its reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tritonclient.grpc import model_config_pb2

from inflight.deploy.repository.model_configs import Configs

FILE = Path(__file__).parents[2] / "data" / "tensorrt_llm_triton.json"
"""The models of triton-inference-server/tensorrtllm_backend, and what TensorRT-LLM 1.x added."""

Key = tuple[str, str, str]
"""A model, a kind of thing in its configuration, and that thing's name."""
Facts = Mapping[Key, Mapping[str, Any]]


class Difference(NamedTuple):
    """Things of one kind in one model that differ from upstream's in the same way, and why they do."""

    model: str
    kind: str
    names: str
    how: str
    why: str


_1X = "the way of the tensors that TensorRT-LLM 1.x added; the contract file has them without it"
_1X_IMAGES = "several images, as TensorRT-LLM 1.x has it; the contract file knows one. It is refused by name"
_OUR_QUEUE = "ours: a request's place and time in the engine's queue"
_OUR_REASON = "ours: why the answer ended, and in how many responses it was told"
_OUR_MESSAGES = "ours: conversations, rendered with the checkpoint's own template, and prompts of token ids"
_REFUSED_HERE = "a missing one is refused by the model: Triton answers nothing where a step's required input is missing"
_OUR_TOKENS = "ours: the answer's tokens beside its text, without the prompt's"
_OLDER = "what upstream called min_tokens and seed up to 0.19; clients of that age send it"
_OUR_KEY = "ours: behind an ensemble, acknowledged chunks show whether their client is still connected"
_OUR_CONTEXT = "ours: what goes with a chunk, so that it is decoded without state"
_OUR_VERSION = "ours: which version wrote an assembled repository, checked when it is loaded"
_OUR_BUILD = "ours: a hash of the engine, its tokenizer and template, by which clients see that the same one answers"
_OUR_STREAMS = "ours: behind TensorRT-LLM's C++ backend, which sends no context, these distinguish the streams"
_OUR_ENDS = "ours: TensorRT-LLM's C++ backend knows one end token, and models have several"
_OUR_STOP_TEXTS = "ours: stop words are found as text too, across tokens, which ids alone can't"
_OUR_ENGINE = "ours: which engine runs, and its bounds, which TensorRT-LLM keeps in the engine itself"
_OUR_SPECULATION = "ours: TensorRT-LLM speculates by its own engines' means"
_ONLY_GPU = "about CUDA devices, of which there is none"
_ONLY_SHARED_OUT = "about a model over several devices or nodes"
_NO_SUCH_FEATURE = "the embedded engine does not do this; its inputs are refused by name"
_OTHER_CACHE = "the embedded engine's cache is sized in tokens alone and lies in main memory"
_OTHER_ADAPTERS = "adapters are files that lora_adapters names; there is no cache of sent ones"
_IN_MANIFEST = "read from the engine's directory, where everything lies together"
_FIXED = "the embedded engine decides this by itself"
_TEXT_ALONE = "for models that read more than text, which are not served"

_OWN_DRAFTS = "inputs of upstream's scripted model, which is an ensemble here: refused by name"
_OUR_SAMPLING = "ours: options of OpenAI's API that upstream has no tensors for"
_SAMPLING = "min_p logit_bias_ids logit_bias_values allowed_token_ids"
_TOLD = "num_top_log_probs return_prompt_log_probs"
_TOLD_OUTPUTS = (
    "num_cached_tokens top_token_ids top_log_probs prompt_log_probs prompt_top_token_ids prompt_top_log_probs"
)

DIFFERENCES = (
    Difference("preprocessing", "input", "IMAGE_PIXELS NUM_DRAFT_TOKENS USE_DRAFT_LOGITS", "added", _OWN_DRAFTS),
    Difference("tensorrt_llm", "output", "dropped_characters", "added", _OUR_REASON),
    *(
        Difference(model, "parameter", name, "added", why)
        for name, why in (("inflight_version", _OUR_VERSION), ("inflight_build", _OUR_BUILD))
        for model in ("preprocessing", "tensorrt_llm", "postprocessing")
    ),
    *(
        Difference(model, "input", names, "optional: None, here True", _REFUSED_HERE)
        for model, names in (
            ("ensemble", "text_input max_tokens"),
            ("preprocessing", "QUERY REQUEST_OUTPUT_LEN"),
        )
    ),
    *(
        Difference(model, f"{step}{kind}", names, "added", why)
        for model, step in (("ensemble", "tensorrt_llm "), ("tensorrt_llm", ""))
        for kind, names, why in (
            ("input", "min_length random_seed", _OLDER),
            ("input", "priority deadline_ms", _OUR_QUEUE),
            ("input", "stop_words", _OUR_STOP_TEXTS),
            ("input", "stream_key", _OUR_KEY),
            ("input", "return_token_ids", _OUR_TOKENS),
            ("output", "token_ids", _OUR_TOKENS),
            ("output", "finish_reason num_responses", _OUR_REASON),
            ("output", "chunk_header", _OUR_CONTEXT),
        )
    ),
    Difference("ensemble", "input", "min_length random_seed", "added", _OLDER),
    Difference("ensemble", "input", "priority deadline_ms", "added", _OUR_QUEUE),
    Difference("ensemble", "output", "finish_reason num_responses", "added", _OUR_REASON),
    Difference("ensemble", "input", "messages chat_template_kwargs prompt_token_ids", "added", _OUR_MESSAGES),
    Difference("ensemble", "input", "return_token_ids", "added", _OUR_TOKENS),
    *(
        Difference(model, kind, f"{_SAMPLING} {_TOLD}", "added", _OUR_SAMPLING)
        for model, kind in (
            ("ensemble", "input"),
            ("ensemble", "tensorrt_llm input"),
            ("tensorrt_llm", "input"),
        )
    ),
    *(
        Difference(model, kind, _TOLD_OUTPUTS, "added", _OUR_SAMPLING)
        for model, kind in (("ensemble", "output"), ("ensemble", "tensorrt_llm output"), ("tensorrt_llm", "output"))
    ),
    Difference("ensemble", "output", "token_ids", "added", _OUR_TOKENS),
    Difference(
        "ensemble", "preprocessing input", "MESSAGES CHAT_TEMPLATE_KWARGS PROMPT_TOKEN_IDS", "added", _OUR_MESSAGES
    ),
    Difference("ensemble", "preprocessing output", "OUT_STREAM_KEY", "added", _OUR_KEY),
    Difference("ensemble", "tensorrt_llm input", "return_num_input_tokens return_num_output_tokens", "added", _1X),
    Difference("ensemble", "tensorrt_llm output", "num_input_tokens num_output_tokens", "added", _1X),
    Difference("ensemble", "postprocessing input", "CHUNK_HEADER", "added", _OUR_CONTEXT),
    Difference("preprocessing", "input", "IMAGES", "added", _1X_IMAGES),
    Difference("preprocessing", "output", "IMAGE_SIZES", "dims: [2], here [-1, 2]", _1X_IMAGES),
    Difference("preprocessing", "output", "OUT_STREAM_KEY", "added", _OUR_KEY),
    Difference("preprocessing", "input", "STREAM", "added", _OUR_STREAMS),
    Difference("preprocessing", "input", "MESSAGES CHAT_TEMPLATE_KWARGS PROMPT_TOKEN_IDS", "added", _OUR_MESSAGES),
    Difference("preprocessing", "parameter", "assign_sequence_ids", "added", _OUR_STREAMS),
    Difference("preprocessing", "parameter", "end_ids_as_stop_words", "added", _OUR_ENDS),
    Difference("preprocessing", "parameter", "special_tokens_in_messages", "added", _OUR_MESSAGES),
    Difference("preprocessing", "parameter", "gpt_model_path", "missing", _IN_MANIFEST),
    Difference("preprocessing", "parameter", "max_num_images multimodal_model_path", "missing", _TEXT_ALONE),
    Difference(
        "tensorrt_llm", "model", "backend", "text: 'tensorrtllm', here 'python'", "ours: the embedded engine's place"
    ),
    Difference(
        "tensorrt_llm", "input", "output_log_probs", "added", "return_log_probs as upstream's tools/gpt name it"
    ),
    Difference(
        "tensorrt_llm",
        "parameter",
        "inflight_engine inflight_engine_options max_num_sequences max_num_tokens itl_bound share_prefixes",
        "added",
        _OUR_ENGINE,
    ),
    Difference(
        "tensorrt_llm", "parameter", "draft_model_path num_draft_tokens prompt_lookup", "added", _OUR_SPECULATION
    ),
    Difference(
        "tensorrt_llm", "parameter", "wrap_token_ids", "added", "ours: ids beyond the vocabulary are refused without"
    ),
    Difference("tensorrt_llm", "parameter", "reproducible", "added", "ours: the kernels of a GPU depend on the batch"),
    Difference("tensorrt_llm", "parameter", "stream_interval", "added", "ours: its backend responds to each step"),
    Difference(
        "tensorrt_llm", "parameter", "max_queue_size", "added", "upstream: the queue policy, which stalls bursts"
    ),
    Difference("tensorrt_llm", "parameter", "threads", "added", "ours: it computes on the GPU"),
    Difference("tensorrt_llm", "parameter", "lora_adapters", "added", _OTHER_ADAPTERS),
    Difference("tensorrt_llm", "parameter", "lora_directory", "added", _OTHER_ADAPTERS),
    Difference("tensorrt_llm", "parameter", "postprocessing_model_name", "added", _OUR_KEY),
    Difference("tensorrt_llm", "parameter", "skip_special_tokens", "added", _OUR_STOP_TEXTS),
    Difference(
        "tensorrt_llm",
        "parameter",
        "cuda_graph_cache_size cuda_graph_mode enable_context_fmha_fp32_acc gpu_weights_percent multi_block_mode"
        " FORCE_CPU_ONLY_INPUT_TENSORS",
        "missing",
        _ONLY_GPU,
    ),
    Difference(
        "tensorrt_llm",
        "parameter",
        "executor_worker_path gpu_device_ids num_nodes participant_ids",
        "missing",
        _ONLY_SHARED_OUT,
    ),
    Difference(
        "tensorrt_llm",
        "parameter",
        "cross_kv_cache_fraction encoder_model_path eagle_choices medusa_choices lookahead_ngram_size"
        " lookahead_verification_set_size lookahead_window_size speculative_decoding_fast_logits",
        "missing",
        _NO_SUCH_FEATURE,
    ),
    Difference(
        "tensorrt_llm",
        "parameter",
        "kv_cache_free_gpu_mem_fraction kv_cache_host_memory_bytes kv_cache_onboard_blocks"
        " max_attention_window_size sink_token_length",
        "missing",
        _OTHER_CACHE,
    ),
    Difference(
        "tensorrt_llm",
        "parameter",
        "lora_cache_gpu_memory_fraction lora_cache_host_memory_bytes lora_cache_max_adapter_size"
        " lora_cache_optimal_adapter_size lora_prefetch_dir",
        "missing",
        _OTHER_ADAPTERS,
    ),
    Difference("tensorrt_llm", "parameter", "tokenizer_dir xgrammar_tokenizer_info_path", "missing", _IN_MANIFEST),
    Difference(
        "tensorrt_llm",
        "parameter",
        "decoding_mode gpt_model_type guided_decoding_backend iter_stats_max_iterations max_beam_width"
        " normalize_log_probs request_stats_max_iterations",
        "missing",
        _FIXED,
    ),
    Difference(
        "postprocessing",
        "input",
        "TOKENS_BATCH SEQUENCE_LENGTH",
        "allow_ragged_batch: None, here True",
        "ours: chunks of several lengths are decoded together",
    ),
    Difference("postprocessing", "input", "CHUNK_HEADER", "added", _OUR_CONTEXT),
    Difference("postprocessing", "input", "BATCH_INDEX SEQUENCE_INDEX", "added", _OUR_STREAMS),
    Difference("postprocessing", "parameter", "engine_model_name", "added", _OUR_KEY),
    Difference("postprocessing", "parameter", "cache_context", "added", _OUR_STREAMS),
)
"""Whatever is not as upstream has it. Each added input is optional, so that upstream's clients need not know it."""


def upstreams() -> dict[Key, dict[str, Any]]:
    """What the contract file says of each model, with what TensorRT-LLM 1.x added."""
    contract = json.loads(FILE.read_text())
    facts: dict[Key, dict[str, Any]] = {}
    for name, model in contract["models"].items():
        more = contract["additions_1x"].get(name, {})
        facts[name, "model", "backend"] = {"text": model["backend"]}
        facts[name, "model", "dynamic_batching"] = {"used": model["dynamic_batching"]}
        # An ensemble streams where its engine does; it has no policy itself.
        facts[name, "model", "decoupled"] = {"used": model["decoupled_allowed"] and model["backend"] != "ensemble"}
        for kind in ("input", "output"):
            for tensor in [*model[kind], *more.get(kind, [])]:
                facts[name, kind, tensor["name"]] = {key: value for key, value in tensor.items() if key != "name"}
        for parameter in model["parameters"]:
            facts[name, "parameter", parameter] = {}
        for number, step in enumerate(model.get("steps", [])):
            facts |= _step(name, number, step["model_name"], step["input_map"], step["output_map"])
    return facts


def ours(configs: Configs) -> dict[Key, dict[str, Any]]:
    """The same of model configurations."""
    facts: dict[Key, dict[str, Any]] = {}
    for name, config in configs.items():
        facts[name, "model", "backend"] = {"text": config.platform or config.backend}
        facts[name, "model", "dynamic_batching"] = {"used": config.HasField("dynamic_batching")}
        facts[name, "model", "decoupled"] = {"used": config.model_transaction_policy.decoupled}
        for kind in ("input", "output"):
            for tensor in getattr(config, kind):
                facts[name, kind, tensor.name] = _tensor(tensor)
        for parameter in config.parameters:
            facts[name, "parameter", parameter] = {}
        for number, step in enumerate(config.ensemble_scheduling.step):
            facts |= _step(name, number, step.model_name, step.input_map, step.output_map)
    return facts


def differences(theirs: Facts, mine: Facts) -> dict[Key, str]:
    """How each thing that is not the same on both sides differs.

    `tensorrt_llm_bls` is an ensemble here: all that counts are the types and shapes of what its clients send and get.
    """
    found = {}
    for key in (*theirs, *mine):
        their, our = theirs.get(key), mine.get(key)
        if key[0] == "tensorrt_llm_bls":
            if their is None or key[1] not in ("input", "output"):
                continue
            their, our = (
                {name: each[name] for name in ("data_type", "dims")} if each else each for each in (their, our)
            )
        if how := _difference(their, our):
            found[key] = how
    return found


def listed() -> dict[Key, str]:
    """The differences that have a reason."""
    return {(row.model, row.kind, name): row.how for row in DIFFERENCES for name in row.names.split()}


def _difference(theirs: Mapping[str, Any] | None, mine: Mapping[str, Any] | None) -> str:
    if theirs is None:
        return "added"
    if mine is None:
        return "missing"
    properties = [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]
    return "; ".join(f"{name}: {theirs.get(name)!r}, here {mine.get(name)!r}" for name in properties)


def _step(
    ensemble: str, number: int, model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> dict[Key, dict[str, Any]]:
    facts: dict[Key, dict[str, Any]] = {(ensemble, "step", model): {"number": number}}
    facts |= {(ensemble, f"{model} input", name): {"from": source} for name, source in inputs.items()}
    facts |= {(ensemble, f"{model} output", name): {"to": target} for name, target in outputs.items()}
    return facts


def _tensor(tensor: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "data_type": model_config_pb2.DataType.Name(tensor.data_type),
        "dims": list(tensor.dims),
    }
    if tensor.HasField("reshape"):
        found["reshape"] = list(tensor.reshape.shape)
    for flag in ("optional", "allow_ragged_batch"):
        if getattr(tensor, flag, False):
            found[flag] = True
    return found

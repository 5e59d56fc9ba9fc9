"""Rules that relate parameters of TensorRT-LLM's backend to each other and to the engine.

The backend itself detects most violations only after the engine is loaded, or ignores them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from build_engines.manifest import GpuFeatures, Manifest
from inflight.deploy.errors import invalid
from inflight.deploy.repository.tensorrt_llm.parameters import (
    EXTERNAL_DRAFTS,
    LOOKAHEAD,
    SPECULATION,
    TensorRtLlmParameters,
)

_REBUILD_REMEDY = "build the engine with it (`inflight build`), or leave the parameter out"
_MIN_CACHE_TOKENS = 64  # two blocks of trtllm-build's default size
_PATH_PARAMETERS = ("xgrammar_tokenizer_info_path", "lora_prefetch_dir", "encoder_model_path")


def check_parameters(
    parameters: TensorRtLlmParameters, user_names: Collection[str], manifest: Manifest, *, decoupled: bool = True
) -> None:
    """Raise DeployError `invalid_parameter` for the first violated rule. `given` names the user's parameters."""
    features = manifest.features or GpuFeatures()
    rules = (
        _fmha(parameters, features),
        _beams(parameters, manifest),
        _speculation(parameters, features),
        _cache(parameters, manifest),
        _encoder(parameters, manifest),
        _guided_decoding(parameters),
        _gpus(parameters, manifest),
        _lora(parameters, user_names, features),
        _others(parameters, decoupled),
    )
    for rule in rules:
        for sentence in rule:
            raise invalid(sentence)


def check_paths(parameters: Mapping[str, str]) -> None:
    """Raise DeployError `invalid_parameter` for a path in a repository's parameters that is not on this machine.

    Only serving checks this: a repository may be assembled for another machine.
    """
    for name in _PATH_PARAMETERS:
        place = parameters.get(name, "")
        if place and not Path(place).exists():
            raise invalid(
                f"The parameter {name} is {place}, which is not on this machine; put it there, or correct it."
            )


def lookahead_draft_tokens(window: int, ngram: int, verification_set: int) -> int:
    """Return the draft tokens that an engine must support for these sizes (`--max_draft_len`).

    The formula is that of TensorRT-LLM's example of lookahead decoding: 83 for 7, 7 and 7.
    """
    return max(ngram - 2, 0) + (window - 1 + verification_set) * (ngram - 1)


def _fmha(parameters: TensorRtLlmParameters, features: GpuFeatures) -> Iterator[str]:
    if features.paged_context_fmha:
        if not parameters.kv_cache_onboard_blocks:
            yield (
                "The parameter kv_cache_onboard_blocks is false, and an engine with paged context FMHA needs its blocks"
                " copied back; leave it out."
            )
        return
    for name in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if getattr(parameters, name):
            yield f"The parameter {name} needs an engine with paged context FMHA; {_REBUILD_REMEDY}."


def _beams(parameters: TensorRtLlmParameters, manifest: Manifest) -> Iterator[str]:
    width, mode = parameters.max_beam_width, parameters.decoding_mode
    if manifest.limits is not None and width > manifest.limits.max_beam_width:
        yield (
            f"The parameter max_beam_width is {width} and the engine was built for {manifest.limits.max_beam_width} at"
            " most; lower it, or build the engine for more."
        )
    if mode == "beam_search" and width == 1:
        yield "The parameter decoding_mode is beam_search and max_beam_width is 1; give a max_beam_width of 2 or more."
    if mode != "beam_search" and width > 1:
        yield (
            f"The parameter max_beam_width is {width} and decoding_mode {mode} supports only one beam; leave one of the"
            " two out."
        )


def _speculation(parameters: TensorRtLlmParameters, features: GpuFeatures) -> Iterator[str]:
    mode, built = parameters.decoding_mode, features.speculative_decoding_mode
    needed = SPECULATION.get(built or "")
    if needed is not None and mode != needed:
        yield f"The engine was built for {built}, which needs the decoding_mode {needed} and not {mode}; leave it out."
    if mode in SPECULATION.values() and mode != needed:
        built_for = next(name for name, value in SPECULATION.items() if value == mode)
        yield (
            f"The parameter decoding_mode is {mode}, and the engine was built {_for_mode(built)}; build one with"
            f" --speculative-decoding-mode {built_for}, or leave the parameter out."
        )
    yield from _draft_length(parameters, built, features)
    yield from _choices(parameters, features)
    yield from _lookahead(parameters, features)


def _draft_length(parameters: TensorRtLlmParameters, built: str | None, features: GpuFeatures) -> Iterator[str]:
    if built == EXTERNAL_DRAFTS and not parameters.enable_kv_cache_reuse:
        remedy = (
            "leave enable_kv_cache_reuse and --no-kv-cache-reuse out"
            if features.paged_context_fmha
            else "build it with paged context FMHA"
        )
        yield f"The engine was built for {built}, which needs the reuse of the KV cache, and that is off; {remedy}."
    if built is not None and len(set(parameters.max_attention_window_size or ())) > 1:
        yield (
            f"The parameter max_attention_window_size holds different numbers, and the engine was built for {built},"
            " which doesn't support windows of several sizes; give one number."
        )
    if parameters.speculative_decoding_fast_logits and parameters.participant_ids is None:
        yield (
            "The parameter speculative_decoding_fast_logits needs an orchestrator that spawns no processes; give"
            " participant_ids too, or leave it out."
        )


def _choices(parameters: TensorRtLlmParameters, features: GpuFeatures) -> Iterator[str]:
    for name in ("medusa_choices", "eagle_choices"):
        choices = getattr(parameters, name)
        if choices is None:
            continue
        twice = next((path for path in choices if choices.count(path) > 1), None)
        if twice is not None:
            yield f"The parameter {name} holds the path {{{', '.join(map(str, twice))}}} twice; name each once."
        if parameters.decoding_mode != name.removesuffix("_choices"):
            yield f"The parameter {name} requires decoding_mode {name.removesuffix('_choices')}; leave it out."
        if len(choices) > features.max_draft_len:
            yield (
                f"The parameter {name} holds {len(choices)} paths and the engine takes {features.max_draft_len} draft"
                " tokens; give fewer, or build the engine for more."
            )


def _lookahead(parameters: TensorRtLlmParameters, features: GpuFeatures) -> Iterator[str]:
    sizes = {name: getattr(parameters, name) for name in LOOKAHEAD}
    missing = [name for name, size in sizes.items() if size is None]
    if parameters.decoding_mode != "lookahead":
        if len(missing) < len(sizes):
            name = next(name for name in sizes if name not in missing)
            yield f"The parameter {name} requires an engine built for lookahead_decoding; leave it out."
        return
    if missing:
        yield f"The parameter {missing[0]} is missing while others of lookahead decoding are set; give all three."
        return
    needed = lookahead_draft_tokens(*sizes.values())
    if needed > features.max_draft_len:
        yield (
            f"The parameters {', '.join(f'{name} {size}' for name, size in sizes.items())} need {needed} draft tokens"
            f" and the engine takes {features.max_draft_len}; give smaller ones, or build the engine for more."
        )


def _cache(parameters: TensorRtLlmParameters, manifest: Manifest) -> Iterator[str]:
    """Check the cache, which may be smaller than the longest sequence: the backend then shortens it with a warning."""
    tokens, width = parameters.max_tokens_in_paged_kv_cache, parameters.max_beam_width
    if tokens is not None and tokens < _MIN_CACHE_TOKENS * width:
        yield (
            f"The parameter max_tokens_in_paged_kv_cache is {tokens}, in which no request fits; give at least"
            f" {_MIN_CACHE_TOKENS * width}, or leave it out."
        )
    if parameters.sink_token_length is not None and parameters.sink_token_length >= manifest.max_seq_len:
        yield (
            f"The parameter sink_token_length is {parameters.sink_token_length} and the engine's longest sequence"
            f" {manifest.max_seq_len}; give a smaller number, or leave it out."
        )
    windows = parameters.max_attention_window_size or ()
    if len(windows) > manifest.layers:
        yield (
            f"The parameter max_attention_window_size holds {len(windows)} numbers and the model has"
            f" {manifest.layers} layers; give one for each, or fewer, which are repeated."
        )
    if width > 1 and any(window < manifest.max_seq_len for window in windows):
        yield (
            "The parameter max_attention_window_size is less than the engine's longest sequence"
            f" ({manifest.max_seq_len}), which TensorRT-LLM doesn't support with beams; leave one of them out."
        )


def _encoder(parameters: TensorRtLlmParameters, manifest: Manifest) -> Iterator[str]:
    # Hugging Face's suffix for models with an encoder and a decoder (T5, BART, Whisper, ...).
    if parameters.encoder_model_path is not None and not manifest.architecture.endswith("ForConditionalGeneration"):
        yield (f"The parameter encoder_model_path is for models with an encoder, which {manifest.name} doesn't have.")
    if parameters.cross_kv_cache_fraction is not None and parameters.encoder_model_path is None:
        yield "The parameter cross_kv_cache_fraction is for models with an encoder, and requires encoder_model_path."


def _guided_decoding(parameters: TensorRtLlmParameters) -> Iterator[str]:
    backend, path = parameters.guided_decoding_backend, parameters.xgrammar_tokenizer_info_path
    if backend == "xgrammar" and path is None:
        yield (
            "The parameter guided_decoding_backend is xgrammar, which needs the tokenizer's vocabulary: give"
            " xgrammar_tokenizer_info_path, or build the engine again, which adds xgrammar_tokenizer_info.json."
        )
    if backend == "none" and path is not None:
        yield ("The parameter xgrammar_tokenizer_info_path has no effect with guided_decoding_backend none.")


def _gpus(parameters: TensorRtLlmParameters, manifest: Manifest) -> Iterator[str]:
    ranks = manifest.tensor_parallel * manifest.pipeline_parallel
    for name in ("gpu_device_ids", "participant_ids"):
        for group in getattr(parameters, name) or ():
            shown = ",".join(map(str, group))
            if len(group) != ranks:
                yield (
                    f"The parameter {name} gives an instance {len(group)} ({shown!r}) and the engine was made for"
                    f" {ranks} (tensor times pipeline parallel); give that many per instance, with ; between instances."
                )
            if len(set(group)) != len(group):
                yield f"The parameter {name} names one twice in {shown!r}; name each once."
    gpus, participants = parameters.gpu_device_ids, parameters.participant_ids
    named = [rank for group in participants or () for rank in group]
    if 0 in named:
        yield "The parameter participant_ids names rank 0, which is the orchestrator's; number from 1."
    if len(set(named)) != len(named):
        yield "The parameter participant_ids names one rank in two instances; name each once."
    if gpus is not None and participants is not None and len(gpus) != len(participants):
        yield (
            f"The parameter gpu_device_ids is for {len(gpus)} instances and participant_ids for {len(participants)};"
            " give both for the same number."
        )
    if ranks % parameters.num_nodes:
        yield (
            f"The parameter num_nodes is {parameters.num_nodes}, which does not divide the engine's {ranks}"
            " ranks; give a number that does."
        )


def _lora(parameters: TensorRtLlmParameters, user_names: Collection[str], features: GpuFeatures) -> Iterator[str]:
    names = [name for name in user_names if name.startswith("lora_")]
    if names and not features.lora:
        yield f"The parameter {names[0]} needs an engine built for LoRA, and this one is not; {_REBUILD_REMEDY}."
    optimal, largest = parameters.lora_cache_optimal_adapter_size, parameters.lora_cache_max_adapter_size
    if optimal > largest:
        yield (
            f"The parameter lora_cache_optimal_adapter_size is {optimal} and lora_cache_max_adapter_size {largest};"
            " the first must not be the larger one."
        )


def _others(parameters: TensorRtLlmParameters, decoupled: bool) -> Iterator[str]:
    if parameters.cuda_graph_cache_size and not parameters.cuda_graph_mode:
        yield "The parameter cuda_graph_cache_size has no effect without cuda_graph_mode; give both."
    if decoupled and parameters.postprocessing_instance_count > 1:
        yield (
            "The parameter postprocessing_instance_count is more than 1, and streams need one process that knows their"
            " earlier tokens; leave it out (one instance decodes many streams at once), or serve with --no-decoupled."
        )


def _for_mode(built: str | None) -> str:
    return f"for {built}" if built else "without speculation"

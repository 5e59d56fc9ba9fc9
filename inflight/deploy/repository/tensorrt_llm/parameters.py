"""The parameters of the model `tensorrt_llm` on upstream's C++ backend.

Names, types and defaults are those that the backend reads: model_state.cc and model_instance_state.cc of
triton_backend/inflight_batcher_llm/src in NVIDIA/TensorRT-LLM at c8c6df08 (1.x), as in tensorrtllm_backend at c2e65b88
(r25.05). Ranges are those of cpp/tensorrt_llm/executor/kvCacheConfig.cpp at 05843b0a where a docstring names it.

A parameter with a default is always written: the backend logs a warning for each missing one. A parameter that is None
must be absent: the backend would use an empty text as a path (`lora_prefetch_dir`), or a value that it refuses
(`sink_token_length` of 0, `cross_kv_cache_fraction` for models without an encoder).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from build_engines.manifest import GpuFeatures, Manifest
from inflight.deploy.errors import invalid
from inflight.deploy.repository.typed_parameters import (
    AbsolutePath,
    Bytes,
    Choices,
    ClosedFraction,
    Count,
    Groups,
    Instances,
    Numbers,
    OpenFraction,
    Positive,
    TypedParameters,
)

SPECULATION = {
    "medusa": "medusa",
    "eagle": "eagle",
    "lookahead_decoding": "lookahead",
    "explicit_draft_tokens": "redrafter",
}
"""The speculation that an engine was built for (`--speculative_decoding_mode`), and the decoding mode that it needs."""

EXTERNAL_DRAFTS = "draft_tokens_external"
"""Built to verify drafts that come with requests, in the KV blocks of the request before."""

LOOKAHEAD = {"lookahead_window_size": 4, "lookahead_ngram_size": 3, "lookahead_verification_set_size": 4}
"""Default sizes of lookahead decoding: upstream's own (LookaheadDecodingConfig in executor.h)."""

DecodingMode = Literal[
    "top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"
]  # fmt: skip


_SET_BY_ENGINE = "the engine directory sets it"


class TensorRtLlmParameters(TypedParameters):
    """All parameters that can be set. The engine directory sets the others: `gpt_model_path` and `tokenizer_dir`."""

    set_elsewhere: ClassVar[Mapping[str, str]] = {
        "gpt_model_path": _SET_BY_ENGINE,
        "tokenizer_dir": _SET_BY_ENGINE,
        "engine_dir": _SET_BY_ENGINE,
        "logits_datatype": _SET_BY_ENGINE,
        "batching_strategy": "use gpt_model_type",
        "decoupled_mode": "use --no-decoupled",
        "max_queue_size": "use --max-queue-size",
        "accumulate_tokens": "each streamed response has new text alone",
        "bls_instance_count": "tensorrt_llm_bls is an ensemble, which serves many requests at once",
    }

    # Batching.
    gpt_model_type: Literal["inflight_fused_batching", "inflight_batching"] = "inflight_fused_batching"
    """In-flight batching; both values mean the same."""
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    """Whether a running request is never paused, or as many as possible run."""
    enable_chunked_context: bool = False
    """Whether long prompts are computed in parts. Requires an engine with paged context FMHA, its default then."""
    max_beam_width: Positive = 1
    """The largest number of beams of a request."""
    recv_poll_period_ms: Count = 0
    """How long the thread that receives requests for other ranks sleeps; 0: never."""

    # KV cache.
    kv_cache_free_gpu_mem_fraction: OpenFraction = 0.9
    """The cache's share of the GPU memory that is free once the engine is loaded."""
    max_tokens_in_paged_kv_cache: Positive | None = None
    """Maximum of tokens in the cache, and of a request; the smaller of this and the fraction applies."""
    kv_cache_host_memory_bytes: Bytes = 0
    """Host memory to which blocks are moved when the GPU's is full."""
    kv_cache_onboard_blocks: bool = True
    """Whether blocks on the host are copied back before they are reused. Internal to upstream."""
    enable_kv_cache_reuse: bool = False
    """Whether known prefixes are reused. Requires an engine with paged context FMHA, its default then."""
    max_attention_window_size: Numbers | None = None
    """Attention window in tokens, by layer if there are several numbers; the whole sequence by default."""
    sink_token_length: Positive | None = None
    """Tokens at the beginning that remain in the window."""
    cross_kv_cache_fraction: OpenFraction | None = None
    """The encoder's share of the cache; 0.5 for models with an encoder, unused by others."""

    # Answers.
    exclude_input_in_output: bool = False
    """Whether a unary answer excludes its prompt; a request can override it."""
    normalize_log_probs: bool = True
    """Whether log probabilities are normalized."""
    decoding_mode: DecodingMode | None = None
    """How tokens are chosen; by default what the engine's speculation and `max_beam_width` need."""
    medusa_choices: Choices | None = None
    """The tree of Medusa's drafts, as `{0}, {0, 1}`; upstream's own by default."""
    eagle_choices: Choices | None = None
    """The tree of EAGLE's drafts; upstream's own by default."""
    lookahead_window_size: Positive | None = None
    """Lookahead decoding: n-grams that are drafted in a step; 4 by default."""
    lookahead_ngram_size: Positive | None = None
    """Lookahead decoding: tokens of an n-gram; 3 by default."""
    lookahead_verification_set_size: Positive | None = None
    """Lookahead decoding: n-grams that are verified in a step; 4 by default."""
    speculative_decoding_fast_logits: bool = False
    """Whether a draft model's logits go between GPUs directly. Requires an orchestrator that spawns no processes."""
    guided_decoding_backend: Literal["xgrammar", "none"] | None = None
    """Applies guides; by default xgrammar if the engine was built with `xgrammar_tokenizer_info.json`."""
    xgrammar_tokenizer_info_path: AbsolutePath | None = None
    """The path of that file, if it is elsewhere on the serving machine."""

    # GPUs and processes.
    gpu_device_ids: Groups | None = None
    """The GPUs of each instance: `0,1;2,3` is two instances of two GPUs each."""
    participant_ids: Groups | None = None
    """The MPI ranks of each instance."""
    num_nodes: Positive = 1
    """Machines that share an instance."""
    executor_worker_path: AbsolutePath = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
    """The program that an orchestrator spawns."""
    gpu_weights_percent: ClosedFraction = 1.0
    """The share of the weights that stays on the GPU. Less than 1 requires an engine built with weight_streaming."""
    encoder_model_path: AbsolutePath | None = None
    """The encoder's engine, for models with an encoder."""

    # LoRA.
    lora_cache_optimal_adapter_size: Positive = 8
    """The rank of adapters that exactly fill a page of the cache."""
    lora_cache_max_adapter_size: Positive = 64
    """The highest rank of an adapter."""
    lora_cache_gpu_memory_fraction: OpenFraction = 0.05
    """The adapters' share of the GPU memory that engine and KV cache leave free."""
    lora_cache_host_memory_bytes: Bytes = 1 << 30
    """Host memory for adapters."""
    lora_prefetch_dir: AbsolutePath | None = None
    """A directory of adapters that are loaded with the engine."""

    # Kernels.
    multi_block_mode: bool = True
    """Whether several blocks of a GPU share the attention of one request."""
    enable_context_fmha_fp32_acc: bool = False
    """Whether prompts are computed with fp32 accumulation."""
    cuda_graph_mode: bool = False
    """Whether steps are launched as CUDA graphs."""
    cuda_graph_cache_size: Count = 0
    """CUDA graphs that are kept."""

    # Watching.
    cancellation_check_period_ms: Positive = 100
    """How often the backend polls Triton for disconnected clients."""
    stats_check_period_ms: Positive = 100
    """How often the metrics are updated."""
    iter_stats_max_iterations: Count = 1000
    """Steps whose statistics are kept until they are read."""
    request_stats_max_iterations: Count = 0
    """Steps whose per-request statistics are kept."""

    # The models around it, by the names of upstream's templates.
    preprocessing_instance_count: Instances = 1
    """Processes that tokenize."""
    postprocessing_instance_count: Instances = 1
    """Processes that decode; only one if answers stream."""
    add_special_tokens: bool = True
    """Whether the tokenizer adds its special tokens to a prompt."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text."""

    @classmethod
    def from_given(cls, values: Mapping[str, Any], manifest: Manifest) -> Self:
        """Return the given values, with defaults that match the engine. Raises DeployError as `read` does."""
        if str(values.get("gpt_model_type", "")).upper() == "V1":
            raise invalid(
                "The parameter gpt_model_type is V1, and TensorRT-LLM no longer has static batching; leave it out."
            )
        features = manifest.features or GpuFeatures()
        needs_reuse = features.speculative_decoding_mode == EXTERNAL_DRAFTS
        suits = {
            "enable_kv_cache_reuse": (features.kv_cache_reuse or needs_reuse) and features.paged_context_fmha,
            "enable_chunked_context": features.chunked_context and features.paged_context_fmha,
        }
        params = cls.read({**suits, **values}, "tensorrt_llm")
        changed: dict[str, Any] = {}
        if params.decoding_mode is None:
            plain = "top_k_top_p" if params.max_beam_width == 1 else "beam_search"
            changed["decoding_mode"] = SPECULATION.get(features.speculative_decoding_mode or "", plain)
        if (changed.get("decoding_mode") or params.decoding_mode) == "lookahead" and not any(
            map(values.get, LOOKAHEAD)
        ):
            changed |= LOOKAHEAD
        if params.encoder_model_path is not None and params.cross_kv_cache_fraction is None:
            changed["cross_kv_cache_fraction"] = 0.5
        if params.xgrammar_tokenizer_info_path is not None and params.guided_decoding_backend is None:
            changed["guided_decoding_backend"] = "xgrammar"
        return params.model_copy(update=changed)

    @property
    def instances(self) -> int:
        """Return the number of instances: one for each group of GPUs."""
        return max(len(self.gpu_device_ids or ()), len(self.participant_ids or ()), 1)

    def engine_model_parameters(self) -> dict[str, str]:
        """Return the config.pbtxt values of the model `tensorrt_llm` itself."""
        texts = {name: text for name, text in self.pbtxt_values().items() if name not in TEXT_MODEL_PARAMETERS}
        # The backend requires these and loads no engine without them. Empty means unset.
        texts["guided_decoding_backend"] = "xgrammar" if self.guided_decoding_backend == "xgrammar" else ""
        return {**texts, "xgrammar_tokenizer_info_path": self.xgrammar_tokenizer_info_path or ""}


TEXT_MODEL_PARAMETERS = (
    "preprocessing_instance_count",
    "postprocessing_instance_count",
    "add_special_tokens",
    "skip_special_tokens",
)
"""Parameters of the models around it."""

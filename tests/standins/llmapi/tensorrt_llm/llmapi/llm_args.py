"""A stand-in for NVIDIA's tensorrt_llm.llmapi.llm_args: which arguments there are, and that no other is taken."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..version import ENCODES


class KvCacheConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: int = 0
    dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    tokens_per_block: int = 32


class TorchLlmArgs(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: str
    tokenizer: Any = None
    tokenizer_mode: Literal["auto", "slow"] = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    moe_tensor_parallel_size: int | None = None
    moe_expert_parallel_size: int | None = None
    enable_lora: bool = False
    lora_config: Any = None
    batched_logits_processor: Any = None
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = None
    speculative_config: Any = None
    max_batch_size: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_beam_width: int | None = None
    max_num_tokens: int | None = 8192
    load_format: Any = 0
    enable_tqdm: bool = False
    enable_chunked_prefill: bool = False
    kv_cache_config: KvCacheConfig = KvCacheConfig()
    stream_interval: int = 1
    gpus_per_node: int | None = None
    moe_cluster_parallel_size: int | None = None
    enable_attention_dp: bool = False
    cp_config: dict[str, Any] | None = None
    iter_stats_max_iterations: int | None = None
    request_stats_max_iterations: int | None = None
    return_perf_metrics: bool = False
    peft_cache_config: Any = None
    scheduler_config: Any = None
    cache_transceiver_config: Any = None
    gather_generation_logits: bool = False
    num_postprocess_workers: int = 0
    postprocess_tokenizer_dir: str | None = None
    reasoning_parser: str | None = None
    fail_fast_on_attention_window_too_large: bool = False
    garbage_collection_gen0_threshold: int = 20000
    backend: str | None = None
    build_config: Any = None
    cuda_graph_config: Any = None
    attention_dp_config: Any = None
    checkpoint_loader: Any = None
    checkpoint_format: str | None = None
    mm_encoder_only: bool = False
    disable_overlap_scheduler: bool = False
    moe_config: Any = None
    attn_backend: str = "TRTLLM"
    sampler_type: str = "auto"
    enable_iter_perf_stats: bool = False
    enable_iter_req_stats: bool = False
    batch_wait_timeout_ms: float = 0
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0
    print_iter_log: bool = False
    perf_metrics_max_requests: int = 0
    torch_compile_config: Any = None
    enable_autotuner: bool = True
    enable_layerwise_nvtx_marker: bool = False
    enable_min_latency: bool = False
    force_dynamic_quantization: bool = False
    allreduce_strategy: str | None = "AUTO"
    decoding_config: Any = None
    kv_connector_config: Any = None
    enable_lm_head_tp_in_adp: bool = False
    orchestrator_type: Literal["rpc", "ray"] | None = None
    sparse_attention_config: Any = None
    ray_worker_extension_cls: str | None = None
    if ENCODES:
        encode_only: bool = False

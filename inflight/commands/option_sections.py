"""Help in sections, for commands with many options."""

from __future__ import annotations

from collections.abc import Mapping

import click

_SAMPLING = (
    *("max_tokens", "temperature", "top_k", "top_p", "seed", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "min_p", "min_tokens", "stop", "adapter"),
)
_CONNECTION = ("server", "model", "header", "ca", "certificate", "key", "tenant", "traceparent")
_TIMEOUTS = ("timeout", "first_token_timeout", "retry_timeout")
_TEMPLATE = ("chat_template", "chat_template_kwargs")
_ENGINE = (
    *("kv_cache_tokens", "max_num_sequences", "max_num_tokens", "itl_bound", "max_queue_size", "no_kv_cache_reuse"),
    *("share_prefixes", "decoupled"),
    *("draft_engine", "prompt_lookup", "num_draft_tokens", "adapters", "adapter_directory"),
    *("stream_interval", "threads", "wrap_token_ids"),
)
_ENCODERS = (
    *("embed", "rerank", "classify", "max_batch_tokens", "max_batch_texts", "max_queue_texts", "max_wait_ms"),
    *("num_requests", "encoder_threads"),
)
_GATEWAY = (
    *("port", "key_file", "tls_certificate", "tls_key", "cors_origin"),
    *("max_in_flight", "max_waiting", "max_connections", "default_max_tokens", "request_timeout"),
    *("max_stored_bytes", "max_tenant_bytes"),
    *("generation_config", "tool_call_parser", "reasoning_parser"),
    *("state_dir", "workers", "otlp_endpoint"),
)
_TRITON_ADDRESS = (
    *("host", "http_host", "metrics_host", "behind_proxy", "http_port", "grpc_port", "metrics_port"),
    *("grpc_tls_certificate", "grpc_tls_key", "grpc_tls_ca"),
)

SECTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "serve": {
        "Model": ("config", "target", "precision", "revision", "served_model_name"),
        "OpenAI-compatible API": ("gateway", "gateway_host", *_GATEWAY),
        "Engine": _ENGINE,
        "Encoders": _ENCODERS,
        "Triton's own ports": _TRITON_ADDRESS,
        "GPU only": ("multi_gpu", "settings", "settings_file"),
        "Output and lifetime": (
            *("request_log", "log_requests", "as_json", "quiet", "verbose", "drain_seconds", "start_timeout"),
        ),
    },
    "gateway": {
        "Servers and model": ("server", "tokenizer", "served_model_name"),
        "OpenAI-compatible API": ("host", *_GATEWAY),
        "Output and lifetime": ("log_requests", "as_json", "quiet", "drain_seconds"),
    },
    "build": {
        "Engine": (
            *("out", "target", "task", "precision", "kv_precision", "max_seq_len", "name", "force", "no_smoke_test"),
        ),
        "Embeddings": ("pooling", "normalize"),
        "GPU only: TensorRT-LLM": (
            *("recipe", "recipe_fields", "dtype", "quantization", "kv_cache_dtype", "tensor_parallel"),
            *("pipeline_parallel", "max_batch_size", "max_input_len", "max_num_tokens", "opt_num_tokens"),
            *("max_beam_width", "speculative_decoding_mode", "max_draft_len", "draft_model", "max_lora_rank"),
            *("calibration_dataset", "workers", "paged_context_fmha", "fp8_context_fmha", "kv_cache_reuse"),
            *("chunked_context", "multiple_profiles", "lora_dir"),
        ),
        "GPU only: where it is built": ("docker", "image", "docker_gpus", "docker_shm_size", "examples_dir"),
        "GPU only: LLM API": ("llm_arguments", "llm_argument"),
        "Output": ("dry_run", "as_json", "quiet"),
    },
    "generate": {
        "Connection": _CONNECTION,
        "Prompt": ("messages", "raw", *_TEMPLATE),
        "Sampling": _SAMPLING,
        "Time limits": _TIMEOUTS,
        "Output": ("stream", "as_json", "log_probs", "top_log_probs", "token_ids"),
    },
    "chat": {
        "Connection": _CONNECTION,
        "Conversation": ("system", *_TEMPLATE, "no_history"),
        "Sampling": _SAMPLING,
        "Time limits": _TIMEOUTS,
        "Output": ("as_json",),
    },
    "embed": {
        "Texts": ("input", "input_type", "truncate"),
        "Connection": _CONNECTION[:-2],
        "Time limits": ("timeout", "priority", "retry_timeout"),
        "Output": ("dimensions", "as_json"),
    },
    "rerank": {
        "Documents": ("input", "truncate"),
        "Connection": _CONNECTION[:-2],
        "Time limits": ("timeout", "priority", "retry_timeout"),
        "Output": ("top_n", "as_json"),
    },
    "classify": {
        "Texts": ("input", "truncate"),
        "Connection": _CONNECTION[:-2],
        "Time limits": ("timeout", "priority", "retry_timeout"),
        "Output": ("as_json",),
    },
    "batch run": {
        "Input": (
            *(
                "input_format",
                "delimiter",
                "row_format",
                "table",
                "query",
                "id",
                "prompt",
                "template",
                "system",
                "chat",
                "raw",
                "keep",
            ),
            "limit",
        ),
        "Output": ("out", "output_format", "output_table", "key", "column", "write"),
        "Retrieval": (
            *("retrieve", "retrieve_table", "retrieve_column", "retrieve_text", "retrieve_id", "retrieve_query"),
            *("retrieve_metric", "retrieve_top_k", "retrieve_rerank", "retrieve_candidates", "retrieve_input_type"),
            *("retrieve_dimensions", "retrieve_server"),
        ),
        "Task": ("task", "documents", "input_type", "dimensions", "truncate", "index", "metric"),
        "Sampling": (*_SAMPLING, "ignore_eos", "generation_config"),
        "Servers": (
            *("server", "model", "header", "ephemeral", "kv_cache_tokens", "max_num_sequences", "max_num_tokens"),
        ),
        "Job": (
            *("job", "runner", "workers", "concurrency", "texts_per_request", "priority", "window", "order"),
            *(
                "row_timeout",
                "max_attempts",
                "max_engine_crashes",
                "drain_seconds",
                "server_wait_timeout",
                "checkpoint_seconds",
            ),
        ),
        "Reports": ("price_per_hour", "allow_failed", "metrics_port", "metrics_file", "as_json", "quiet"),
    },
    "load run": {
        "Arrivals": ("users", "rate", "arrivals", "burstiness", "pause", "speed", "seconds", "sessions", "warmup"),
        "Requests": (
            *("input_tokens", "output_tokens", "max_input_tokens", "max_output_tokens", "tokenizer"),
            *("tokens_per_word", "prompt_format", "prefix_tokens", "prefix_count", "prefix_fraction", "turns"),
            *("turn_tokens", "think_time", "cancel_fraction", "cancel_after", "temperature", "top_p", "ignore_eos"),
            "seed",
        ),
        "Encoders": ("task", "texts_per_request", "text_tokens", "query_tokens", "input_type", "priority"),
        "Prompts and traces from files": (
            *("prompts", "order", "repeat", "trace", "trace_format", "trace_start", "input_scale", "output_scale"),
            "block_tokens",
        ),
        "Connection": (
            *("server", "model", "header", "ca", "certificate", "key", "tenant", "chat_template", "metrics_url"),
            *("mode", "timeout", "drain_seconds"),
        ),
        "Verdict and report": ("slo", "price_per_hour", "currency", "out", "as_json"),
        "Plan and machines": ("plan", "workers", "expect_workers", "bind", "join_timeout"),
    },
}
"""The options of each command by section, in the order of the help. Options in no section come last."""


class SectionedCommand(click.Command):
    """A command whose help shows its options in the sections of `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {param.name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))}
        sections = SECTIONS.get(ctx.command_path.partition(" ")[2], {})
        for title, names in sections.items():
            rows = [records.pop(name) for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        with formatter.section("Other options" if sections else "Options"):
            formatter.write_dl(list(records.values()))

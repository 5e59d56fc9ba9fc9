"""How each kind of server describes itself and its errors, as its sources have it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Kind(NamedTuple):
    owner: str | None
    """`owned_by` of its models; None: the model's own name."""
    pages: dict[str, Any]
    """JSON of its GET paths other than the list of models; None: an empty page."""
    routes: tuple[str, ...] = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
    strict: tuple[str, ...] = ()
    """Fields that it answers with 400 or 422."""


_HEALTH: dict[str, Any] = {"/health": None}
_RERANK = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank")

KINDS = {
    "openai": Kind("openai", {}, strict=("top_k", "min_p", "ignore_eos", "chat_template_kwargs", "truncate")),
    "vllm": Kind("vllm", {**_HEALTH, "/version": {"version": "0.12.0"}}, (*_RERANK, "/classify", "/tokenize")),
    "sglang": Kind("sglang", {**_HEALTH, "/server_info": {"version": "0.5.23"}}, _RERANK),
    "tgi": Kind(
        None,
        {**_HEALTH, "/info": {"model_id": "tea", "max_concurrent_requests": 128, "version": "3.3.4"}},
        ("/v1/chat/completions", "/v1/completions"),
    ),
    "llama.cpp": Kind(
        "llamacpp",
        {**_HEALTH, "/props": {"default_generation_settings": {}, "build_info": "b8681"}},
        _RERANK,
    ),
    "ollama": Kind("library", {"/": None, "/api/version": {"version": "0.12.6"}}),
    "trtllm": Kind(
        "tensorrt_llm",
        {**_HEALTH, "/version": {"version": "1.2.0"}},
        strict=("n_predict", "bad_words", "truncate", "service_tier"),
    ),
    "ovms": Kind(
        "OVMS", {"/v2/health/ready": None, "/v2": {"name": "OpenVINO Model Server", "version": "2026.2"}}, _RERANK
    ),
    "inflight": Kind(
        "inflight",
        {**_HEALTH, "/ready": None, "/version": {"version": "0.1.0"}},
        (*_RERANK, "/v1/classify", "/tokenize"),
    ),
    "other": Kind("Triton Inference Server", {}),
}


def error_body(kind: str, status: int, message: str) -> Any:
    """Return the body of an error as that kind of server writes it."""
    if kind == "tgi":
        return {"error": message, "error_type": "overloaded" if status == 429 else "validation"}
    if kind in ("sglang", "trtllm"):
        return {"object": "error", "message": message, "type": "Error", "param": None, "code": status}
    if kind == "ovms":
        return {"error": message}
    if kind == "other":
        return {"detail": message}
    code = None if kind in ("openai", "ollama", "inflight") else status
    return {"error": {"message": message, "type": "api_error", "param": None, "code": code}}

"""Builds response bodies in OpenAI's format: `CreateChatCompletionResponse`, `CreateCompletionResponse`, `Error`."""

from __future__ import annotations

from typing import Any

from inflight_client.results import Generation

_LENGTH = "length"
STATUS = {
    "model_not_found": 404,
    "permission_denied": 403,
    "overloaded": 503,
    "model_not_ready": 503,
    "engine_restarting": 503,
}
"""HTTP status by error code; all errors of the request itself are 400."""
NO_RESPONSE_CODES = frozenset(
    (
        *("engine_died", "server_gone", "server_unreachable", "host_not_found", "connection_closed", "answer_damaged"),
        *("unsupported_deployment", "client_closed", "client_forked", "cancelled", "deadline_exceeded"),
        *("job_expired", "job_failed", "row_crashed_engine"),
    )
)
"""Codes of errors without a response from a server."""
_OPENAI_CODES = {"deadline_exceeded": "request_timeout", "cancelled": "batch_cancelled", "job_expired": "batch_expired"}
_OPENAI_ERRORS = {"prompt_too_long": "context_length_exceeded"}


def chat_body(name: str, created: int, model: str, answer: Generation, log_probs: bool) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": {"content": _chat_log_probs(answer), "refusal": None} if log_probs else None,
        "finish_reason": _finish_reason(answer),
    }
    return _body(f"chatcmpl-{name}", "chat.completion", created, model, choice, answer)


def text_body(name: str, created: int, model: str, answer: Generation, log_probs: bool) -> dict[str, Any]:
    choice = {
        "text": answer.text,
        "index": 0,
        "logprobs": _text_log_probs(answer) if log_probs else None,
        "finish_reason": _finish_reason(answer),
    }
    return _body(f"cmpl-{name}", "text_completion", created, model, choice, answer)


def error_body(message: str, code: str, status: int, param: str | None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {"message": message, "type": kind, "param": param, "code": _OPENAI_ERRORS.get(code, code)},
    }


def line_error(message: str, code: str) -> dict[str, Any]:
    """Return the `error` of a line."""
    return {"code": _OPENAI_CODES.get(code, code), "message": message}


def _body(name: str, kind: str, created: int, model: str, choice: dict[str, Any], answer: Generation) -> dict[str, Any]:
    body = {"id": name, "object": kind, "created": created, "model": model, "choices": [choice]}
    if answer.usage is not None:
        body["usage"] = {
            "prompt_tokens": answer.usage.input_tokens,
            "completion_tokens": answer.usage.output_tokens,
            "total_tokens": answer.usage.total_tokens,
        }
    return body


def _finish_reason(answer: Generation) -> str:
    """Return the finish reason; OpenAI has only these two for a text."""
    return _LENGTH if answer.finish_reason == _LENGTH else "stop"


def _chat_log_probs(answer: Generation) -> list[dict[str, Any]]:
    """Return log probabilities. The client knows tokens only by id, written as with vLLM's
    `return_tokens_as_token_ids`."""
    return [{"token": token, "logprob": value, "bytes": None, "top_logprobs": []} for token, value in _chosen(answer)]


def _text_log_probs(answer: Generation) -> dict[str, Any]:
    chosen = _chosen(answer)
    return {"tokens": [token for token, _ in chosen], "token_logprobs": [value for _, value in chosen]}


def _chosen(answer: Generation) -> list[tuple[str, float]]:
    values = answer.log_probs or ()
    ids = answer.token_ids if answer.token_ids is not None and len(answer.token_ids) == len(values) else None
    names = [f"token_id:{each}" for each in ids] if ids is not None else [""] * len(values)
    return list(zip(names, values, strict=True))

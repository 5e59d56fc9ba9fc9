"""Errors of the engine in the words of OpenAI's API."""

from __future__ import annotations

import re

from inflight_client import InflightError

from inflight.gateway.servers import UpstreamServer
from inflight.openai_api.errors import ApiError, context_length_exceeded
from inflight.openai_api.request import GenerationRequest

_OF_PROMPTS = ("invalid_token_ids", "empty_prompt", "invalid_text", "invalid_messages", "no_chat_template")
_BY_TOKEN = ("allowed_token_ids", "logit_bias", "bad_words")
_TOO_LONG = re.compile(r"the prompt's (\d+) tokens and max_tokens of .* the engine takes (\d+)")
_FIELDS = {
    "request_output_len": "max_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "bad_words_list": "bad_words",
    "stop_words": "stop",
    "input_ids": "prompt",
}
"""Fields of a request by the names of the engine's inputs."""
_INPUTS = re.compile(rf"\b({'|'.join(_FIELDS)})\b")


def engine_error(error: InflightError, parsed: GenerationRequest, server: UpstreamServer, guided: str) -> ApiError:
    """Return the error for a request; `guided` is its field that says what form the answer must have."""
    if server.speaks_tokens:
        retry_after = error.retry_after
        error = InflightError(_INPUTS.sub(lambda match: _FIELDS[match[1]], str(error)), error.code)
        error.retry_after = retry_after
    param = "messages" if parsed.chat else "prompt"
    if "guided_decoding_guide" in str(error):
        message = str(error).replace("guided_decoding_guide_type", guided).replace("guided_decoding_guide", guided)
        notes = " ".join(server.served.get("notes", ())) if "no guided decoding" in message else ""
        return ApiError(f"{message}. {notes}" if notes else message, error.code, guided)
    if error.code != "prompt_too_long":
        param = next((name for name in _BY_TOKEN if str(error).startswith(name)), param)
        return ApiError.from_error(error, param if error.code in _OF_PROMPTS else None)
    if match := _TOO_LONG.search(str(error)):
        return context_length_exceeded(int(match[2]), int(match[1]), param, parsed.max_tokens)
    most = server.max_seq_len or "unknown"
    message = f"This model's maximum context length is {most} tokens. However, {error}. [context_length_exceeded]"
    return ApiError(message, error.code, param)

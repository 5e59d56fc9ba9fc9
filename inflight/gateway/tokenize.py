"""Answers `/tokenize` and `/detokenize`, in the form of vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from inflight_client.validation import shorten

from inflight.gateway.key_ring import Caller
from inflight.gateway.model_text import EncodedPrompt
from inflight.gateway.server_pool import ServerPool
from inflight.gateway.servers import UpstreamServer
from inflight.openai_api.errors import ApiError, errors_of
from inflight.openai_api.field_reader import FieldReader, whole
from inflight.openai_api.fields import CHAT_FIELDS
from inflight.openai_api.messages import checked_text
from inflight.openai_api.request import count_characters, parse_messages, template_kwargs
from inflight.openai_api.tools import parse_tools

AS_IN_CHAT = (
    *("messages", "tools", "chat_template_kwargs", "reasoning_effort"),
    *("add_generation_prompt", "continue_final_message"),
)
_MAX_TOKENS = 1_000_000
_MAX_CHARACTERS = 2**20


async def tokenize(body: Any, pool: ServerPool, caller: Caller) -> bytes:
    """Return as JSON the token ids of `prompt`, or of `messages` as the model's template renders them."""
    server = _server(body, {"model", "prompt", "add_special_tokens", "return_token_strs", *AS_IN_CHAT}, pool, caller)
    special = _boolean(body, "add_special_tokens", True)
    named = _boolean(body, "return_token_strs", False)

    def parse() -> tuple[Any, dict[str, Any]]:
        if body.get("messages") is not None:
            reader = FieldReader({name: each for name, each in body.items() if each is not None}, CHAT_FIELDS)
            prompt: Any = parse_messages(reader)
            tools = parse_tools(reader)
            kwargs = template_kwargs(reader) | ({"tools": tools.for_template()} if tools.active else {})
        else:
            with errors_of("prompt"):
                prompt, kwargs = checked_text("prompt", body.get("prompt"), empty=True), {}
        if count_characters(prompt) + count_characters(kwargs) > _MAX_CHARACTERS:
            raise ApiError(
                f"the text has more than {_MAX_CHARACTERS} characters; send it in parts",
                "request_too_large",
                status=413,
            )
        return prompt, kwargs

    def answer(ids: Sequence[int]) -> bytes:
        response: dict[str, Any] = {"count": len(ids), "max_model_len": server.max_seq_len, "tokens": ids}
        if named:
            response["token_strs"] = [server.text.tokenizer.id_to_token(each) for each in ids]
        return orjson.dumps(response)

    prompt, kwargs = await asyncio.to_thread(parse)
    encoded = await server.text.encode(prompt, kwargs, special) if prompt else EncodedPrompt(())
    return await asyncio.to_thread(answer, encoded.ids)


async def detokenize(body: Any, pool: ServerPool, caller: Caller) -> bytes:
    """Return as JSON the text of `tokens`."""
    server = _server(body, {"model", "tokens"}, pool, caller)
    ids = body.get("tokens")

    def convert() -> bytes:
        if (
            not isinstance(ids, list)
            or len(ids) > _MAX_TOKENS
            or not all(type(each) is int and 0 <= each < 2**31 for each in map(whole, ids))
        ):
            raise ApiError("tokens must be a list of token ids", "invalid_parameter", "tokens")
        return orjson.dumps({"prompt": server.text.decode([int(each) for each in ids])})

    return await asyncio.to_thread(convert)


def _server(body: Any, allowed: set[str], pool: ServerPool, caller: Caller) -> UpstreamServer:
    if not isinstance(body, Mapping):
        raise ApiError(f"the body is {shorten(body)}; it must be a JSON object", "invalid_request")
    for name in body:
        if name not in allowed and body[name] is not None:
            named = next((each for each in ("prompt", "messages", "tokens") if body.get(each) is not None), None)
            step = "leave it out" if named else f"send {'prompt' if 'prompt' in allowed else 'tokens'}"
            raise ApiError(f"the field {name[:80]!r} is unknown; {step}", "unsupported_input", name[:80])
    if body.get("prompt") is not None and body.get("messages") is not None:
        raise ApiError("prompt and messages are both given; send one of them", "invalid_request", "prompt")
    model = body.get("model")
    models = [each.model for each in pool.known if caller.visible is None or each.model in caller.visible]
    if model is None and len(models) == 1:
        (model,) = models
    if not isinstance(model, str):
        raise ApiError("the request has no model; set it to a text", "invalid_request", "model")
    caller.check_model(model)
    return pool.choose(model, caller.visible)


def _boolean(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"{name} must be true or false", "invalid_parameter", name)
    return default if value is None else value

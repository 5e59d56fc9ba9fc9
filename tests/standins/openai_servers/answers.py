"""Answers of the stand-in: short, the same for the same request, in the shapes of OpenAI's API."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

_EXAMPLES = {"integer": 1, "number": 0.5, "boolean": True, "null": None, "string": "tea"}


def completion(body: dict[str, Any], chat: bool, obey: bool) -> dict[str, Any]:
    """Return the whole answer; with `obey` in the format that the body asks for."""
    prompt = body["messages"][-1]["content"] if chat else str(body["prompt"])
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or 1000
    schema = _schema(body) if obey else None
    words = [json.dumps(example(schema))] if schema is not None else f"Answer to {prompt}".split()
    reason = "length" if len(words) > limit else "stop"
    text = " ".join(words[:limit])
    choices = [_choice(index, text, reason, body, chat, obey) for index in range(body.get("n") or 1)]
    usage = {"prompt_tokens": len(str(prompt).split()), "completion_tokens": min(len(words), limit) * len(choices)}
    return {
        "id": "cmpl-1",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": body.get("model", ""),
        "choices": choices,
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }


def _choice(index: int, text: str, reason: str, body: dict[str, Any], chat: bool, obey: bool) -> dict[str, Any]:
    logs = [-0.5] * len(text.split()) if body.get("logprobs") not in (None, False) else None
    if not chat:
        tokens = {"token_logprobs": logs, "tokens": text.split()} if logs else None
        choice = {"index": index, "text": text, "finish_reason": reason, "logprobs": tokens}
        scored = "prompt_logprobs" in body and obey
        return choice | ({"prompt_logprobs": _prompt_logprobs(body["prompt"])} if scored else {})
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if body.get("tools") and body.get("tool_choice") != "none":
        called = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
        message["tool_calls"][0]["function"], reason = called, "tool_calls"
    content = {"content": [{"token": "tea", "logprob": log, "top_logprobs": []} for log in logs]} if logs else None
    return {"index": index, "message": message, "finish_reason": reason, "logprobs": content}


def token_ids(text: str) -> list[int]:
    """Return a token for each word."""
    return [zlib.crc32(word.encode()) % 1000 for word in text.split()]


def log_prob(token: int) -> float:
    """Return that of a token of a prompt, wherever it is; those with an even id are the likeliest ones."""
    return -token / 1000


def _prompt_logprobs(ids: list[int]) -> list[dict[str, Any] | None]:
    return [None, *({str(each): {"logprob": log_prob(each), "rank": 1 + each % 2}} for each in ids[1:])]


def frames(answer: dict[str, Any], chat: bool, with_usage: bool) -> list[dict[str, Any]]:
    """Return the frames of the answer as a stream, a word in each."""
    head = {"id": answer["id"], "created": 1, "model": answer["model"]}
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    found = []
    for choice in answer["choices"]:
        index, text = choice["index"], choice["message"]["content"] if chat else choice["text"]
        pieces = [word + " " for word in (text or "").split()]
        for piece in [*pieces[:-1], *(piece.rstrip() for piece in pieces[-1:])]:
            part: dict[str, Any] = {"delta": {"content": piece}} if chat else {"text": piece}
            found.append({**head, "choices": [{"index": index, **part, "finish_reason": None}]})
        calls = choice["message"].get("tool_calls") if chat else None
        part = {"delta": {"tool_calls": [{"index": 0, **calls[0]}]} if calls else {}} if chat else {"text": ""}
        found.append({**head, "choices": [{"index": index, **part, "finish_reason": choice["finish_reason"]}]})
    return [*found, {**head, "choices": [], "usage": answer["usage"]}] if with_usage else found


def encoding(path: str, body: dict[str, Any], as_list: bool) -> Any:
    """Return the answer of an encoder's route."""
    if path.endswith("rerank"):
        scores = sorted(((_hash(text), place) for place, text in enumerate(body["documents"])), reverse=True)
        results = [{"index": place, "score" if as_list else "relevance_score": score} for score, place in scores]
        return results if as_list else {"model": "tea", "results": results[: body.get("top_n")]}
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    values = [_hash(text) for text in texts]
    data: list[dict[str, Any]]
    if path.endswith("classify"):
        data = [{"index": i, "label": "good", "probs": [v, 1 - v], "num_classes": 2} for i, v in enumerate(values)]
    else:
        packed = body.get("encoding_format") == "base64"
        rows: list[Any] = [[value, 1.0] for value in values]
        rows = [base64.b64encode(struct.pack("<2f", *row)).decode() for row in rows] if packed else rows
        data = [{"index": index, "embedding": row, "object": "embedding"} for index, row in enumerate(rows)]
    tokens = sum(len(str(text).split()) for text in texts)
    return {"object": "list", "data": data, "model": "tea", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _schema(body: dict[str, Any]) -> Any:
    """Return the schema that a body asks for, in the spelling of any kind of server; None without one."""
    format = body.get("response_format") or {}
    given = format.get("json_schema", format)
    found = given.get("schema", given.get("value"))
    return {"type": "object"} if found is None and format.get("type") == "json_object" else found


def example(schema: Any) -> Any:
    """Return a value that a simple schema accepts."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        return [example(schema.get("items", {}))]
    if schema.get("type", "object") == "object":
        return {name: example(each) for name, each in schema.get("properties", {}).items()}
    return _EXAMPLES[schema["type"]]


def _hash(text: Any) -> float:
    return zlib.crc32(str(text).encode()) % 1000 / 1000

"""The description of the gateway's API in OpenAPI 3.1, made of the tables that its parsers use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from inflight_client.encoder_call import Task

from inflight import __version__
from inflight.gateway.batches import ENDPOINTS, PURPOSES
from inflight.gateway.tokenize import AS_IN_CHAT
from inflight.openai_api.encoding_request import PATHS
from inflight.openai_api.fields import (
    CHAT_FIELDS,
    CLASSIFY_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    FLAG,
    INTEGER,
    LIST,
    OBJECT,
    RERANK_FIELDS,
    RESPONSES_FIELDS,
    TEXT,
    TEXT2TEXT_FIELDS,
    Field,
    Tier,
)
from inflight.openai_api.transcription_request import AUDIO_FIELDS, AUDIO_PATHS

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERROR_RESPONSE = {"description": "An error.", "content": {"application/json": {"schema": _ERROR}}}


_AUDIO = {"transcribe": "Write down what is said in an audio.", "translate": "Translate what is said into English."}


@lru_cache(maxsize=4)
def openapi(models: tuple[tuple[str, str | None], ...] = ()) -> dict[str, Any]:
    """Return the document; `models` are the names that a request may give, each with its task if it is known."""
    model = _model(models, "generate")
    embed = _table(EMBEDDING_FIELDS, _model(models, "embed"), ("input",))
    rerank = _table(RERANK_FIELDS, _model(models, "rerank"), ("query", "documents"))
    classify = _table(CLASSIFY_FIELDS, _model(models, "classify"), ("input",))
    text2text = _table(TEXT2TEXT_FIELDS, _model(models, "text2text"), ("input",))
    encoders: dict[Task, dict[str, Any]] = {
        "embed": _post("Embed texts.", embed),
        "rerank": _post("Rank documents by their match with a query.", rerank),
        "classify": _post("Classify texts.", classify),
        "text2text": _post("Translate or summarize texts.", text2text),
    }
    speech = _model(models, "transcribe")
    audio = {task: _form(_table(fields, speech, ("file",))) for task, fields in AUDIO_FIELDS.items()}
    name = [{"name": "id", "in": "path", "required": True, "schema": TEXT}]
    own = {"model": model, "prompt": TEXT, "add_special_tokens": FLAG, "return_token_strs": FLAG}
    tokenize = _body(own | {name: CHAT_FIELDS[name].schema for name in AS_IN_CHAT}, ())
    detokenize = _body({"model": model, "tokens": LIST | {"items": INTEGER}}, ("tokens",))
    moderation = _body({"model": TEXT, "input": {"anyOf": [TEXT, LIST]}}, ("input",))
    adapter = _body({"lora_name": TEXT, "lora_path": TEXT}, ("lora_name",))
    form = {"file": TEXT, "purpose": {"enum": list(PURPOSES)}, "expires_after": OBJECT}
    upload = {"content": {"multipart/form-data": {"schema": _schema(form, ("file", "purpose"))}}}
    batch = _body(
        {
            "input_file_id": TEXT,
            "endpoint": {"enum": list(ENDPOINTS)},
            "completion_window": {"const": "24h"},
            "metadata": OBJECT,
            "output_expires_after": OBJECT,
        },
        ("input_file_id", "endpoint", "completion_window"),
    )
    paths: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {
            "post": _post("Answer a conversation.", _table(CHAT_FIELDS, model, ("model", "messages")), True)
        },
        "/v1/completions": {
            "post": _post("Continue texts.", _table(COMPLETION_FIELDS, model, ("model", "prompt")), True)
        },
        "/v1/responses": {
            "post": _post(
                "Answer a conversation, in the Responses API.",
                _table(RESPONSES_FIELDS, model, ("model", "input")),
                True,
            )
        },
        **{path: {"post": _post(_AUDIO[task], audio[task])} for task, path in AUDIO_PATHS.items()},
        **{path: {"post": operation} for task, operation in encoders.items() for path in PATHS[task]},
        "/v1/moderations": {"post": _post("Judge texts by a classifier of the checks.", moderation)},
        "/v1/models": {"get": _get("List the served models.")},
        "/v1/models/{id}": {"get": _get("Describe a model.", name)},
        "/v1/load_lora_adapter": {"post": _post("Load a LoRA adapter, as a model.", adapter)},
        "/v1/unload_lora_adapter": {"post": _post("Remove a LoRA adapter from the models.", adapter)},
        "/v1/files": {
            "get": _get("List files."),
            "post": _post("Upload a file.", upload),
        },
        "/v1/files/{id}": {"get": _get("Describe a file.", name), "delete": _get("Delete a file.", name)},
        "/v1/files/{id}/content": {"get": _get("Download a file.", name)},
        "/v1/batches": {"get": _get("List batches."), "post": _post("Start a batch.", batch)},
        "/v1/batches/{id}": {"get": _get("Describe a batch.", name)},
        "/v1/batches/{id}/cancel": {"post": _get("Cancel a batch.", name)},
        "/tokenize": {"post": _post("Return the token ids of `prompt` or `messages`.", tokenize)},
        "/detokenize": {"post": _post("Return the text of `tokens`.", detokenize)},
        "/health": {"get": _get("Whether the gateway runs. Needs no key.")},
        "/ready": {"get": _get("Whether a server is ready; 503 if not. Needs no key.")},
        "/metrics": {"get": _get("Metrics of the gateway, for Prometheus.")},
        "/live": {"get": _get("A page that shows the load of the servers. Needs no key; its figures do.")},
        "/live/data": {"get": _get("The figures of that page.")},
        "/version": {"get": _get("The version of inflight.")},
        "/openapi.json": {"get": _get("This description.")},
        "/docs": {"get": _get("This description as a page.")},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "inflight", "version": __version__, "description": "An OpenAI-compatible API for Triton."},
        "security": [{}, {"key": []}],
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "paths": paths,
    }


def _model(models: tuple[tuple[str, str | None], ...], task: str) -> dict[str, Any]:
    names = [name for name, own in models if own in (None, task)]
    return {"type": "string", "enum": names} if names else TEXT


def _table(fields: Mapping[str, Field], model: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    properties = {}
    for name, field in fields.items():
        prefix = "" if field.tier is Tier.HONOURED else f"{field.tier.value.capitalize()}: "
        schema = dict(model if name == "model" else field.schema)
        if schema and name not in required:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[name] = schema | {"description": prefix + field.note}
    return _body(properties, required)


def _form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body of JSON as a form."""
    return {**body, "content": {"multipart/form-data": body["content"]["application/json"]}}


def _body(properties: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _schema(properties, required)}}}


def _schema(properties: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _post(summary: str, body: Mapping[str, Any], streams: bool = False) -> dict[str, Any]:
    operation = _get(summary)
    operation["requestBody"] = dict(body)
    if streams:
        operation["responses"]["200"]["content"]["text/event-stream"] = {}
        operation["responses"]["200"]["headers"] = {"x-inflight-cache": {"schema": {"enum": ["hit", "miss", "off"]}}}
        operation["parameters"] = [{"name": "cache-control", "in": "header", "schema": TEXT}]
    return operation


def _get(summary: str, parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": "The answer.", "content": {"*/*": {}}}, "default": _ERROR_RESPONSE},
    }
    if parameters:
        operation["parameters"] = parameters
    return operation

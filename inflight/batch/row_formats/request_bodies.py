"""The bodies of OpenAI's API for the requests of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inflight_client import InflightError
from inflight_client.sampling import PARAMETERS, Guide, Sampling

from inflight.batch.job.rows import ClassifyRequest, EmbedRequest, GenerateRequest, RerankRequest, RowRequest

CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/tokenize"
ROUTES = {"embed": "/v1/embeddings", "rerank": "/v1/rerank", "classify": "/v1/classify"}


def is_openai_address(address: str) -> bool:
    """Return whether this is the address of a server of OpenAI's protocol, `openai+http(s)://...`."""
    return address.lower().startswith("openai+")


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return the fields of the parameters that are set. Raises InflightError for what no field exists."""
    fields: dict[str, Any] = {}
    for name, parameter in PARAMETERS.items():
        if (value := getattr(sampling, name)) is None:
            continue
        if name == "end_id" and value == -1:
            fields["ignore_eos"] = True
        elif not parameter.openai:
            raise InflightError(f"servers of OpenAI's protocol have no field for {name}", "unsupported_input")
        else:
            fields[name] = value
    words = {"stop": sampling.stop, "bad_words": sampling.bad_words, "allowed_token_ids": sampling.allowed_token_ids}
    fields |= {name: list(value) for name, value in words.items() if value}
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.guide is not None:
        fields["response_format"] = _response_format(sampling.guide)
    return fields


def _response_format(guide: Guide) -> dict[str, Any]:
    if guide.type == "json":
        return {"type": "json_object"}
    if guide.type == "json_schema":
        described = {"name": "answer", "schema": json.loads(guide.text), "strict": True}
        return {"type": "json_schema", "json_schema": described}
    kind = "ebnf" if guide.type == "ebnf_grammar" else guide.type
    return {"type": kind, kind: guide.text}


def generate_body(request: GenerateRequest) -> tuple[str, dict[str, Any]]:
    """Return the route and the body of a request for an answer. Raises InflightError."""
    chat = request.chat or request.as_chat or not isinstance(request.prompt, str)
    if request.body is not None:
        body = dict(request.body)
    else:
        body = {"max_tokens": request.max_tokens, **sampling_fields(request.sampling)}
        if not chat:
            body["prompt"] = request.prompt
        elif isinstance(request.prompt, str):
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["messages"] = request.prompt
        if request.schema is not None:  # as it was given: servers differ in what they can enforce
            described = {"name": "answer", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": described}
        if not request.as_model and "temperature" not in body and body.get("top_k", 0) <= 1 and not body.get("top_p"):
            body["temperature"] = 0  # OpenAI's default is 1, ours is greedy decoding
    if request.wants_scores and not body.get("logprobs"):
        body["logprobs"] = True if chat else 0
    return CHAT if chat else COMPLETIONS, body


def score_body(ids: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """Return the route and the body of a request for the log probabilities of a prompt, and the likeliest tokens."""
    return COMPLETIONS, {"prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}


def encode_body(requests: Sequence[RowRequest]) -> tuple[str, dict[str, Any]]:
    """Return the route and the body of requests of one task, which is not `generate`, with the same shared values."""
    first = requests[0]
    body: dict[str, Any]
    if isinstance(first, EmbedRequest):
        texts = [text for each in requests if isinstance(each, EmbedRequest) for text in each.texts]
        body = {"input": texts, "encoding_format": "float", "dimensions": first.dimensions}
        body |= {"input_type": first.input_type}
        route = ROUTES["embed"]
    elif isinstance(first, RerankRequest):
        body, route = {"query": first.query, "documents": list(first.documents)}, ROUTES["rerank"]
    else:
        assert isinstance(first, ClassifyRequest)
        body = {"input": [each.text for each in requests if isinstance(each, ClassifyRequest)]}
        route = ROUTES["classify"]
    body["truncate"] = first.truncate or None
    return route, {name: value for name, value in body.items() if value is not None}

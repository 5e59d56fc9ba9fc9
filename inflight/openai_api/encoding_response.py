"""Builds the responses of embeddings (OpenAI's), reranking (Cohere's and Jina's), classification (vLLM's) and
translation.

A large response is written in parts, so that no step of the event loop takes long.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from inflight_client import InflightError
from inflight_client.encoder_call import TRANSLATE_OPTIONS
from inflight_client.encodings import Classifications, Embeddings, Encodings, Reranking, Translations

from inflight.openai_api.encoding_request import EmbeddingRequest, RerankRequest
from inflight.openai_api.errors import ApiError

_PART_VALUES = 32_768
"""Numbers in a part of a response."""
_DOCUMENTS_PER_SEARCH = 100
"""Cohere counts so many documents of a query as one search."""
_OPTIONS = ("input_type", "dimensions", "query", *TRANSLATE_OPTIONS)
"""Of all texts of a request; their values are checked by the client or the server."""


def embedding_parts(embeddings: Embeddings, parsed: EmbeddingRequest, model: str) -> Iterator[bytes]:
    """Yield the body of an embeddings response."""
    vectors = embeddings.vectors

    def item(index: int) -> dict[str, Any]:
        row: Any = vectors[index]
        if index in embeddings.errors:
            row = []
        elif parsed.encoding_format == "base64":
            row = base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode()
        return {"object": "embedding", "index": index, "embedding": row}

    return _list_parts(embeddings, item, embeddings.dimensions, {"object": "list", "model": model})


def classification_parts(
    classifications: Classifications, model: str, response_id: str, created: int
) -> Iterator[bytes]:
    """Yield the body of a classification response."""

    def item(index: int) -> dict[str, Any]:
        scores = classifications[index].scores
        return {
            "index": index,
            "label": classifications[index].label,
            "probs": list(scores.values()),
            "num_classes": len(scores),
        }

    labels = next((list(each.scores) for each in classifications if each.scores), [])
    head = {"id": f"classify-{response_id}", "object": "list", "created": created, "model": model, "labels": labels}
    return _list_parts(classifications, item, len(labels), head)


def translation_parts(translations: Translations, model: str) -> Iterator[bytes]:
    """Yield the body of a response with translations or summaries."""

    def item(index: int) -> dict[str, Any]:
        written, reason = translations.output_tokens[index], translations.finish_reasons[index]
        return {"index": index, "text": translations[index], "num_output_tokens": written, "finish_reason": reason}

    return _list_parts(translations, item, 1, {"object": "list", "model": model})


def rerank_body(
    reranking: Reranking, parsed: RerankRequest, model: str, response_id: str, version: str, max_tokens: int | None
) -> dict[str, Any]:
    """Return the body of a reranking response: what Cohere's and Jina's clients read, side by side.

    `version` is that of Cohere's API; `max_tokens` is where documents were cut.
    """
    results = []
    for each in reranking.results:
        index = each.index
        result: dict[str, Any] = {"index": index, "relevance_score": each.score, **_facts(reranking, index)}
        if parsed.return_documents:
            document = parsed.sent_documents[index]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    results += [
        {"index": index, "relevance_score": None, **_facts(reranking, index)} for index in sorted(reranking.errors)
    ]
    meta: dict[str, Any] = {
        "api_version": {"version": version},
        "billed_units": {"search_units": math.ceil(parsed.size / _DOCUMENTS_PER_SEARCH)},
        "tokens": {"input_tokens": reranking.total_tokens},
    }
    cut = [str(index) for index, truncated in enumerate(reranking.truncated) if truncated]
    if cut:
        limit = f" at the model's limit of {max_tokens} tokens" if max_tokens else ""
        meta["warnings"] = [f"these documents were cut{limit}: {', '.join(cut[:100])}{', ...' if cut[100:] else ''}"]
    return {
        "id": response_id,
        "object": "list",
        "model": model,
        "results": results,
        "usage": _usage(reranking),
        "meta": meta,
    }


def _list_parts(
    encodings: Embeddings | Classifications | Translations,
    item: Callable[[int], dict[str, Any]],
    values: int,
    head: Mapping[str, Any],
) -> Iterator[bytes]:
    """Yield the parts of a list whose items have so many values each."""
    step = max(1, _PART_VALUES // max(1, values))
    yield orjson.dumps(head)[:-1] + b',"data":['
    for start in range(0, len(encodings), step):
        items = [item(index) | _facts(encodings, index) for index in range(start, min(start + step, len(encodings)))]
        yield (b"," if start else b"") + orjson.dumps(items, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    yield b'],"usage":' + orjson.dumps(_usage(encodings)) + b"}"


def _facts(encodings: Encodings, index: int) -> dict[str, Any]:
    """Return what inflight adds to each result."""
    facts: dict[str, Any] = {"num_input_tokens": encodings.input_tokens[index], "truncated": encodings.truncated[index]}
    if error := encodings.errors.get(index):
        facts["error"] = ApiError.from_error(error).body()["error"]
    return facts


def _usage(encodings: Encodings) -> dict[str, int]:
    computed = encodings.total_tokens
    if not isinstance(encodings, Translations):
        return {"prompt_tokens": computed, "total_tokens": computed}
    written = sum(encodings.output_tokens)
    return {"prompt_tokens": computed, "completion_tokens": written, "total_tokens": computed + written}


def first_error(errors: Mapping[int, InflightError], name: str, single: bool) -> ApiError:
    """Return the error of a request of which texts failed: the first that is not the server's, or the first.

    `name` is the field of the texts; `single`: it has one text alone, so its error names no index.
    """
    index, error = min(errors.items(), key=lambda each: (each[1].retry, each[0]))
    option = next((each for each in _OPTIONS if str(error).startswith(f"{each} ")), None)
    if error.retry or option:
        return ApiError.from_error(error, option)
    place = name if single else f"{name}[{index}]"
    api_error = ApiError.from_error(error, name)
    return ApiError(f"{place}: {api_error}", api_error.code, api_error.param, api_error.status, api_error.headers)

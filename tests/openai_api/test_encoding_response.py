"""The bodies of embeddings, reranking and classification, in the forms of OpenAI, Cohere, Jina and vLLM."""

from __future__ import annotations

import base64
from typing import Any

import numpy
import orjson
import pytest
from inflight_client import InflightError
from inflight_client.encodings import Embeddings

from inflight.openai_api.encoding_request import parse_embedding
from inflight.openai_api.encoding_response import embedding_parts, first_error


def embeddings(count: int, dimensions: int, **changes: Any) -> Embeddings:
    vectors = numpy.random.default_rng(0).standard_normal((count, dimensions)).astype(numpy.float32)
    return Embeddings(vectors, **{"input_tokens": (3,) * count, "truncated": (False,) * count, **changes})


@pytest.mark.parametrize("count", [1, 257])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_each_vector_is_exact_at_its_index(count: int, encoding: str) -> None:
    found = embeddings(count, 384)
    parts = list(embedding_parts(found, parse_embedding({"input": "a", "encoding_format": encoding}), "m"))
    assert max(map(len, parts)) < 2**20
    body = orjson.loads(b"".join(parts))
    assert (body["object"], body["model"]) == ("list", "m")
    assert body["usage"] == {"prompt_tokens": 3 * count, "total_tokens": 3 * count}
    assert [each["index"] for each in body["data"]] == list(range(count))
    for each, vector in zip(body["data"], found.vectors, strict=True):
        given: Any = each["embedding"]
        row = (
            numpy.frombuffer(base64.b64decode(given), "<f4")
            if encoding == "base64"
            else numpy.array(given, numpy.float32)
        )
        assert (row == vector).all()


def test_the_first_invalid_text_is_the_request_s_error_before_what_may_pass() -> None:
    busy, bad = InflightError("full", "overloaded"), InflightError("too long", "prompt_too_long")
    error = first_error({0: busy, 3: bad, 7: bad}, "input", single=False)
    assert (error.code, error.status, error.param) == ("prompt_too_long", 400, "input")
    assert "input[3]" in str(error)
    later = first_error({4: busy, 2: busy}, "input", single=False)
    assert (later.code, later.status, later.param) == ("overloaded", 429, None)
    assert int(later.headers["retry-after"]) > 0


def test_the_error_of_the_query_is_no_document_s() -> None:
    long = InflightError("query has 510 tokens; shorten the query", "prompt_too_long")
    error = first_error({0: long, 1: long}, "documents", single=False)
    assert (str(error), error.code, error.param) == (str(long), "prompt_too_long", "query")

"""The bodies of embeddings, reranking and classification, in the forms of OpenAI, Cohere, Jina and vLLM."""

from __future__ import annotations

import base64
from typing import Any

import numpy
import orjson
import pytest
from inflight_client import InflightError
from inflight_client.encodings import Classification, Classifications, Embeddings, RankedDocument, Reranking

from inflight.openai_api.encoding_request import RerankRequest, parse_embedding, parse_encoding
from inflight.openai_api.encoding_response import classification_parts, embedding_parts, first_error, rerank_body


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


def test_a_text_that_failed_has_an_error_and_no_vector() -> None:
    vectors = numpy.array([[1, 2], [numpy.nan, numpy.nan]], numpy.float32)
    found = Embeddings(
        vectors, input_tokens=(3, 0), truncated=(True, False), errors={1: InflightError("no", "invalid_text")}
    )
    good, bad = orjson.loads(b"".join(embedding_parts(found, parse_embedding({"input": "a"}), "m")))["data"]
    assert (good["embedding"], good["truncated"], "error" in good) == ([1, 2], True, False)
    assert (bad["embedding"], bad["error"]["code"]) == ([], "invalid_text")


def test_documents_are_ranked_with_what_cohere_s_and_jina_s_clients_read() -> None:
    documents = ["black", {"text": "green", "url": "x"}, *["other"] * 99]
    wanted = parse_encoding("rerank", {"query": "tea", "documents": documents, "return_documents": True})
    assert isinstance(wanted, RerankRequest)
    found = Reranking(
        (RankedDocument(1, 0.9), RankedDocument(0, 0.2)),
        (0.2, 0.9),
        input_tokens=(4,) * 101,
        truncated=(True, *(False,) * 100),
    )
    body = rerank_body(found, wanted, "m", "req_1", "2", 512)
    assert [(each["index"], each["relevance_score"]) for each in body["results"]] == [(1, 0.9), (0, 0.2)]
    assert [each["document"] for each in body["results"]] == [documents[1], {"text": "black"}]
    assert (body["id"], body["model"], body["usage"]["total_tokens"]) == ("req_1", "m", 404)
    assert body["meta"]["api_version"] == {"version": "2"}
    assert body["meta"]["billed_units"] == {"search_units": 2}
    assert len(body["meta"]["warnings"]) == 1


def test_a_class_has_the_probabilities_of_all_labels_in_the_model_s_order() -> None:
    results = (Classification("good", 0.75, {"bad": 0.25, "good": 0.75}),)
    found = Classifications(results, input_tokens=(5,), truncated=(False,))
    body = orjson.loads(b"".join(classification_parts(found, "m", "req_1", 7)))
    (only,) = body["data"]
    assert {name: only[name] for name in ("index", "label", "probs", "num_classes")} == {
        "index": 0,
        "label": "good",
        "probs": [0.25, 0.75],
        "num_classes": 2,
    }
    assert (body["id"], body["object"], body["created"]) == ("classify-req_1", "list", 7)
    assert body["labels"] == ["bad", "good"]


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

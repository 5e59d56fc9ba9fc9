"""Which bodies of embeddings, reranking and classification are requests, and what they ask for."""

from __future__ import annotations

from typing import Any

import pytest
from inflight_client.encoder_call import Task

from inflight.openai_api.encoding_request import (
    ClassifyRequest,
    EmbeddingRequest,
    RerankRequest,
    parse_embedding,
    parse_encoding,
)
from inflight.openai_api.errors import ApiError
from inflight.openai_api.fields import MAX_TEXTS
from tests.fixtures.errors import raises

_RERANK = {"query": "tea", "documents": ["a", "b"]}


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("tea", ("tea",)),
        (["tea", "milk"], ("tea", "milk")),
        ([5, 6], ((5, 6),)),
        ([[5, 6], [7]], ((5, 6), (7,))),
        (["a"] * MAX_TEXTS, ("a",) * MAX_TEXTS),
    ],
    ids=["text", "texts", "ids", "lists of ids", "many"],
)
def test_input_has_openai_s_forms(given: Any, texts: Any) -> None:
    for task in ("embed", "classify"):
        found = parse_encoding(task, {"model": "m", "input": given})
        assert isinstance(found, ClassifyRequest)
        assert (found.model, found.texts, found.size) == ("m", texts, len(texts))


@pytest.mark.parametrize(
    ("fields", "cut"),
    [
        ({}, False),
        ({"truncate": True}, True),
        ({"truncate": False}, False),
        ({"truncate": "END"}, True),
        ({"truncate": "NONE"}, False),
        ({"truncate_prompt_tokens": -1}, True),
        ({"truncate": None, "truncate_prompt_tokens": None}, False),
    ],
)
def test_long_texts_are_cut_only_if_asked_in_any_of_the_clients_words(fields: dict[str, Any], cut: bool) -> None:
    assert parse_embedding({"input": "tea", **fields}).truncate is cut


def test_documents_are_texts_or_objects_and_are_cut_by_default() -> None:
    found = parse_encoding("rerank", {"query": "tea", "documents": ["a", {"text": "b", "url": "x"}], "top_n": 0})
    assert isinstance(found, RerankRequest)
    assert (found.documents, found.top_n, found.return_documents, found.truncate) == (("a", "b"), None, False, True)


def test_fields_without_effect_are_named() -> None:
    found = parse_embedding({"input": "tea", "user": "me", "encoding_format": "base64", "dimensions": 4})
    assert isinstance(found, EmbeddingRequest)
    assert found.no_effect == ("user",)
    assert (found.encoding_format, found.dimensions) == ("base64", 4)


@pytest.mark.parametrize(
    ("task", "body", "code", "param"),
    [
        ("embed", [], "invalid_request", None),
        ("embed", {}, "empty_prompt", "input"),
        ("embed", {"input": []}, "empty_prompt", "input"),
        ("embed", {"input": ""}, "empty_prompt", "input"),
        ("embed", {"input": ["a", ""]}, "empty_prompt", "input"),
        ("embed", {"input": ["a", 5]}, "invalid_text", "input"),
        ("embed", {"input": ["a\0"]}, "invalid_text", "input"),
        ("embed", {"input": [1, "a"]}, "invalid_token_ids", "input"),
        ("embed", {"input": [[1], "a"]}, "invalid_token_ids", "input"),
        ("embed", {"input": [[1], []]}, "empty_prompt", "input"),
        ("embed", {"input": [[-1]]}, "invalid_token_ids", "input"),
        ("embed", {"input": [[2**31]]}, "invalid_token_ids", "input"),
        ("embed", {"input": [True]}, "invalid_text", "input"),
        ("embed", {"input": {"text": "a"}}, "invalid_parameter", "input"),
        ("embed", {"input": ["a"] * (MAX_TEXTS + 1)}, "invalid_parameter", "input"),
        ("embed", {"input": "a", "model": 5}, "invalid_request", "model"),
        ("embed", {"input": "a", "encoding_format": "int8"}, "invalid_parameter", "encoding_format"),
        ("embed", {"input": "a", "dimensions": 0}, "invalid_parameter", "dimensions"),
        ("embed", {"input": "a", "dimensions": "4"}, "invalid_parameter", "dimensions"),
        ("embed", {"input": "a", "input_type": ""}, "invalid_request", "input_type"),
        ("embed", {"input": "a", "truncate": "START"}, "invalid_parameter", "truncate"),
        ("embed", {"input": "a", "truncate_prompt_tokens": 16}, "unsupported_input", "truncate_prompt_tokens"),
        ("embed", {"input": "a", "add_special_tokens": False}, "unsupported_input", "add_special_tokens"),
        ("embed", {"input": "a", "priority": 10**6}, "invalid_parameter", "priority"),
        ("embed", {"input": "a", "documents": []}, "unsupported_input", "documents"),
        ("classify", {"input": "a", "dimensions": 4}, "unsupported_input", "dimensions"),
        ("classify", {"text": "a"}, "invalid_request", "input"),
        ("rerank", {"documents": ["a"]}, "invalid_request", "query"),
        ("rerank", {"query": "", "documents": ["a"]}, "invalid_request", "query"),
        ("rerank", {"query": "a\0", "documents": ["a"]}, "invalid_text", "query"),
        ("rerank", {"query": "a"}, "invalid_request", "documents"),
        ("rerank", {"query": "a", "docs": ["b"]}, "invalid_request", "documents"),
        ("embed", {"texts": ["a"]}, "invalid_request", "input"),
        ("rerank", {"query": "a", "documents": []}, "invalid_request", "documents"),
        ("rerank", {"query": "a", "documents": "b"}, "invalid_request", "documents"),
        ("rerank", {"query": "a", "documents": ["b", {"title": "c"}]}, "invalid_parameter", "documents"),
        ("rerank", {"query": "a", "documents": ["b", ""]}, "empty_prompt", "documents"),
        ("rerank", _RERANK | {"top_n": -1}, "invalid_parameter", "top_n"),
        ("rerank", _RERANK | {"rank_fields": ["title"]}, "unsupported_input", "rank_fields"),
        ("rerank", _RERANK | {"max_chunks_per_doc": 3}, "unsupported_input", "max_chunks_per_doc"),
        ("rerank", _RERANK | {"return_documents": "yes"}, "invalid_parameter", "return_documents"),
    ],
)
def test_what_is_no_request_is_refused_by_the_field_s_name(task: Task, body: Any, code: str, param: str | None) -> None:
    with raises(ApiError, code) as error:
        parse_encoding(task, body)
    assert (error.value.param, error.value.status) == (param, 400)


def test_the_error_of_a_text_names_its_index() -> None:
    with raises(ApiError, "empty_prompt", naming="input[2]"):
        parse_embedding({"input": ["a", "b", ""]})
    with raises(ApiError, "empty_prompt", naming="documents[1]"):
        parse_encoding("rerank", {"query": "a", "documents": ["a", ""]})


def test_an_empty_text_is_left_to_the_server_where_errors_are_returned() -> None:
    assert parse_embedding({"input": ["a", ""], "return_errors": True}).texts == ("a", "")


@pytest.mark.parametrize(
    ("task", "body", "most", "tokens"),
    [
        ("embed", {"input": ["x" * 400, "x" * 100_000]}, 512, 101 + 512),
        ("embed", {"input": [[7] * 600, [7] * 5]}, 512, 512 + 5),
        ("rerank", {"query": "x" * 400, "documents": ["x" * 100_000, "x" * 400]}, 512, 512 + 2 * 101),
        ("classify", {"input": "x" * 4000}, None, 1001),
    ],
)
def test_no_more_tokens_are_expected_than_the_model_computes(
    task: Task, body: dict[str, Any], most: int | None, tokens: int
) -> None:
    assert parse_encoding(task, body).estimated_tokens(most) == tokens

"""Requests and results of a gateway's routes of encoders; test_gateway.py of the encoders has the real gateway."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pytest
from inflight_client import InflightError
from inflight_client._openai.encoders import EncoderHttpRequest
from inflight_client.encoder_call import EncoderOptions
from inflight_client.encoder_texts import Splitter
from inflight_client.results import Model

from tests.fixtures.errors import raises


def request(task: Any, texts: list[Any], **options: Any) -> EncoderHttpRequest:
    [found] = Splitter(EncoderOptions(task, options.pop("model", ""), openai=True, **options)).requests(texts)
    return EncoderHttpRequest(found.build())


def body(task: Any, texts: list[Any], **options: Any) -> Any:
    return json.loads(request(task, texts, **options).body)


def answer(task: Any, texts: list[Any], document: dict[str, Any]) -> Any:
    options = {"query": "?"} if task == "rerank" else {}
    return request(task, texts, **options).parse_event(json.dumps(document).encode())


def test_texts_and_options_have_the_gateways_names() -> None:
    assert body("embed", ["a", "お茶"], model="mini", dimensions=4, input_type="query", priority=2) == {
        "model": "mini",
        "input": ["a", "お茶"],
        "encoding_format": "base64",
        "dimensions": 4,
        "input_type": "query",
        "priority": 2,
        "truncate": False,
        "return_errors": True,
    }
    assert body("embed", [[1, 2], [3]])["input"] == [[1, 2], [3]]
    assert body("classify", ["a"], truncate=True) == {"input": ["a"], "truncate": True, "return_errors": True}
    assert body("rerank", ["a", "b"], query="?", top_n=1) == {
        "query": "?",
        "documents": ["a", "b"],
        "truncate": False,
        "return_errors": True,
    }
    assert request("rerank", ["a"], query="?").path == "/v1/rerank"


def test_vectors_are_read_by_their_index_and_errors_beside_them() -> None:
    vector = np.array([0.5, -1], "<f4")
    found = answer(
        "embed",
        ["a", "b", "c"],
        {
            "model": "mini",
            "data": [
                {"index": 1, "embedding": [], "error": {"message": "too long", "code": "context_length_exceeded"}},
                {
                    "index": 0,
                    "embedding": base64.b64encode(vector.tobytes()).decode(),
                    "num_input_tokens": 3,
                    "truncated": True,
                },
            ],
        },
    )
    assert found.array("embedding")[0].tolist() == [0.5, -1]
    assert np.isnan(found.array("embedding")[1:]).all()
    assert found.array("num_input_tokens").tolist() == [3, 0, 0]
    assert found.array("truncated").tolist() == [True, False, False]
    assert found.text("model") == "mini"
    first, second, third = found.texts("error")
    assert first == ""
    assert second.endswith("[prompt_too_long]")
    assert third.endswith("[answer_damaged]")


def test_scores_are_in_the_order_of_the_documents() -> None:
    results = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": None}]
    scores = answer("rerank", ["a", "b"], {"results": results}).array("scores")
    assert math.isnan(scores[0, 0])
    assert scores[1, 0] == np.float32(0.9)


def test_the_order_of_a_gateway_stays_where_scores_are_equal() -> None:
    results = [{"index": 2, "relevance_score": 1.0}, {"index": 0, "relevance_score": 1.0}]
    logits = answer("rerank", ["a", "b", "c"], {"results": results}).array("logits")
    assert logits[2, 0] > logits[0, 0]
    classes = [{"index": 0, "label": "bad", "probs": [1.0, 1.0]}]
    assert answer("classify", ["a"], {"data": classes, "labels": ["good", "bad"]}).array("logits").tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("listed", "labels"), [({"labels": ["good", "bad"]}, ("good", "bad")), ({}, ("LABEL_0", "bad"))]
)
def test_labels_are_those_that_the_gateway_tells(listed: dict[str, Any], labels: tuple[str, ...]) -> None:
    results = [{"index": 0, "label": "bad", "probs": [0.1, 0.9]}]
    found = answer("classify", ["a"], {"data": results, **listed})
    assert found.texts("labels") == labels
    assert found.array("scores")[0].tolist() == [np.float32(0.1), np.float32(0.9)]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"data": [{"index": 5}]},
        {"data": [{"index": 0, "embedding": "?"}]},
        {"data": [{"index": 0, "embedding": "AAA="}]},
        {"data": 7},
    ],
)
def test_other_results_are_damaged(document: dict[str, Any]) -> None:
    with raises(InflightError, "answer_damaged"):
        answer("embed", ["a"], document)


def test_an_encoder_beside_the_model_that_generates_text_is_no_choice() -> None:
    from inflight_client._openai.deployment import detect

    questions = detect(None)
    next(questions)
    questions.send([Model("tea", "", "READY", task="generate"), Model("mini", "", "READY", task="embed")])
    with pytest.raises(StopIteration) as end:
        questions.throw(InflightError("no", "permission_denied"))
    assert end.value.value.model == "tea"

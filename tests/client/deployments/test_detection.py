"""The client finds the model that takes text, whatever else the server has and however little it tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from inflight_client.call import Call
from inflight_client.deployments.requests import build_request
from inflight_client.errors import InflightError

from tests.client.support.deployments import OURS, OURS_BEFORE_CPP, find, repository
from tests.deploy.repository.golden_cases import CASES
from tests.fixtures.errors import raises
from tests.standins.kserve.repository import ModelSpec, llmapi, text_models

NO_CONFIGS = {("config", name): "permission_denied" for name in text_models()}
NO_INDEX = {("index", ""): "permission_denied"}


@pytest.mark.parametrize(
    ("models", "model", "kind", "streams", "stop_model"),
    [
        (repository(OURS), "ensemble", "inflight", True, "tensorrt_llm"),
        (repository(OURS_BEFORE_CPP), "ensemble", "tensorrtllm", True, "tensorrt_llm"),
        (text_models(), "ensemble", "tensorrtllm", True, "tensorrt_llm"),
        (text_models(decoupled=False), "ensemble", "tensorrtllm", False, "tensorrt_llm"),
        (text_models(without=("ensemble",)), "tensorrt_llm_bls", "tensorrtllm", True, None),
        (text_models(without=("ensemble",), decoupled=False), "tensorrt_llm_bls", "tensorrtllm", False, None),
        (llmapi(), "tensorrt_llm", "llmapi", True, "tensorrt_llm"),
        (llmapi(decoupled=False), "tensorrt_llm", "llmapi", False, "tensorrt_llm"),
    ],
)
def test_the_first_text_model_that_is_there_is_taken(
    models: Mapping[str, ModelSpec], model: str, kind: str, streams: bool, stop_model: str | None
) -> None:
    for refusals in ({}, NO_INDEX):
        found = find(models, refusals=refusals)
        assert (found.model, found.kind, found.decoupled, found.stop_model) == (model, kind, streams, stop_model)


def test_a_model_that_is_not_ready_is_passed_over_for_one_that_is() -> None:
    models = text_models()
    assert find(models, states={"ensemble": "UNAVAILABLE"}).model == "tensorrt_llm_bls"
    gone = dict.fromkeys([("metadata", name) for name in models], "model_not_ready")
    with raises(InflightError, "model_not_ready"):
        find(models, states=dict.fromkeys(models, "UNAVAILABLE"), refusals=gone)


def test_a_model_that_is_being_loaded_is_waited_for() -> None:
    with raises(InflightError, "model_not_ready", naming="ensemble"):
        find(text_models(), states={"ensemble": "LOADING"})
    assert find(text_models(), states={"tensorrt_llm_bls": "LOADING"}).model == "ensemble"


def test_a_named_model_is_taken_and_no_other_is_asked_about() -> None:
    questions: list[Any] = []
    found = find(repository(OURS), "tensorrt_llm_bls", asked=questions)
    assert (found.model, found.kind, found.stop_model) == ("tensorrt_llm_bls", "inflight", "tensorrt_llm")
    assert questions == [("metadata", "tensorrt_llm_bls"), ("config", "tensorrt_llm_bls")]


def test_ours_is_found_with_three_questions() -> None:
    questions: list[Any] = []
    find(repository(OURS), asked=questions)
    assert questions == [("index", ""), ("metadata", "ensemble"), ("config", "ensemble")]


@pytest.mark.parametrize(
    ("models", "name", "code", "words"),
    [
        ({}, None, "unsupported_deployment", "none"),
        (text_models(without=("ensemble", "tensorrt_llm_bls")), None, "unsupported_deployment", "postprocessing"),
        (text_models(), "preprocessing", "unsupported_deployment", "preprocessing"),
    ],
)
def test_where_no_model_takes_text_the_error_says_what_was_found(
    models: Mapping[str, ModelSpec], name: str | None, code: str, words: str
) -> None:
    with raises(InflightError, code, naming=words):
        find(models, name)


@pytest.mark.parametrize(
    ("models", "refusals", "words"),
    [
        (text_models(), {}, "ensemble, postprocessing, preprocessing, tensorrt_llm, tensorrt_llm_bls"),
        (text_models(), NO_INDEX, "it has: ensemble, tensorrt_llm_bls"),
        ({}, {}, "'nobody'"),
    ],
)
def test_for_a_name_that_is_not_there_the_error_lists_the_models_that_are(
    models: Mapping[str, ModelSpec], refusals: Mapping[tuple[str, str], str], words: str
) -> None:
    with raises(InflightError, "model_not_found", naming=words):
        find(models, "nobody", refusals)


@pytest.mark.parametrize("question", [("index", ""), ("metadata", "ensemble"), ("config", "tensorrt_llm")])
def test_a_server_that_is_lost_while_it_is_asked_is_told(question: tuple[str, str]) -> None:
    with raises(InflightError, "server_unreachable"):
        find(text_models(), refusals={question: "server_unreachable"})


def test_without_configurations_metadata_has_to_do() -> None:
    found = find(text_models(), refusals=NO_CONFIGS)
    assert (found.kind, found.decoupled, found.version, found.stop_model) == ("tensorrtllm", None, None, "tensorrt_llm")
    assert build_request(found, Call("Tea?", True), None, None).inputs["stream"].values == (True,)
    scripted = find(text_models(without=("ensemble",)), refusals=NO_CONFIGS)
    assert scripted.stop_model is None
    build_request(scripted, Call("Tea?", False), None, None)
    with raises(InflightError, "unsupported_input", naming="stream"):
        build_request(scripted, Call("Tea?", True), None, None)
    own = find(repository(OURS), "tensorrt_llm_bls", NO_CONFIGS)
    assert (own.kind, own.stop_model) == ("inflight", "tensorrt_llm")


def test_a_server_may_tell_what_it_serves() -> None:
    served = CASES["openvino"].directory()
    assert find(repository(OURS)).served == {}
    assert find(repository(served)).served["precision"]
    told = '{"model": "tea", "max_sequences": 8, "odd": [1]}'
    assert find(repository(served, inflight_served=told)).served == {"model": "tea", "max_sequences": 8}
    for nothing in ("", "[1]", "{", "[" * 100_000):
        assert find(repository(served, inflight_served=nothing)).served == {}


def test_what_the_configurations_say_is_known() -> None:
    served = CASES["openvino"].directory()
    assert find(repository(served, inflight_version="0.1.7")).version == "0.1.7"
    assert find(repository(OURS)).version is None
    assert find(repository(served, inflight_build="abc")).build == "abc"
    assert find(repository(OURS)).build is None
    assert find(text_models(accumulate=True), "tensorrt_llm_bls").accumulates
    assert not find(text_models(), "tensorrt_llm_bls").accumulates  # upstream's placeholder, never filled in
    assert find(text_models(add_special_tokens="False")).adds_special_tokens is False
    assert find(text_models(add_special_tokens="${add_special_tokens}")).adds_special_tokens is None

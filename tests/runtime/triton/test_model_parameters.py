"""What a config.pbtxt says about a model, as its code reads it."""

from __future__ import annotations

import json

import pytest

from inflight import __version__, compatible
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.triton.model_parameters import decoupled, engine_options, flag, milliseconds, parameters
from tests.fixtures.errors import raises


def test_parameters_left_empty_count_as_not_given() -> None:
    config = {"parameters": {"a": {"string_value": "1"}, "b": {"string_value": ""}, "c": {}}}
    assert parameters({"model_config": json.dumps(config)}) == {"a": "1"}
    assert parameters({"model_config": "{}"}) == {}


@pytest.mark.parametrize("value", ["true", "True", "1", "yes", "y", "T"])
def test_yes(value: str) -> None:
    assert flag({"a": value}, "a", default=False) is True


@pytest.mark.parametrize("value", ["false", "False", "0", "no", "n", "F"])
def test_no(value: str) -> None:
    assert flag({"a": value}, "a", default=True) is False


@pytest.mark.parametrize("default", [True, False])
def test_neither(default: bool) -> None:
    assert flag({}, "a", default) is default
    with raises(ValueError, naming=("a", "perhaps")):
        flag({"a": "perhaps"}, "a", default)


def test_the_engine_gets_what_the_model_was_given() -> None:
    settings = {
        "inflight_engine": "fake",
        "gpt_model_path": "/engines/demo",
        "max_tokens_in_paged_kv_cache": "4096",
        "max_num_sequences": "8",
        "max_num_tokens": "128",
        "skip_special_tokens": "false",
        "enable_kv_cache_reuse": "false",
        "inflight_engine_options": '{"step_seconds": "0.01"}',
        "max_queue_size": "7",
    }
    assert engine_options(settings) == EngineOptions(
        "fake",
        "/engines/demo",
        4096,
        8,
        128,
        max_queue_size=7,
        skip_special_tokens=False,
        kv_cache_reuse=False,
        chunked_context=True,
        extra={"step_seconds": "0.01"},
    )


def test_a_model_answers_once_unless_it_is_decoupled() -> None:
    assert decoupled({"model_config": "{}"}) is False
    assert decoupled({"model_config": '{"model_transaction_policy": {"decoupled": true}}'}) is True


def test_a_period_is_a_whole_number_of_milliseconds() -> None:
    assert milliseconds({}, "period") == 100
    assert milliseconds({"period": "20"}, "period") == 20
    for value in ("0", "-1", "1.5", "soon"):
        with raises(ValueError, naming="period"):
            milliseconds({"period": value}, "period")


def test_relative_paths_lie_in_the_models_own_folder_and_absolute_ones_stay() -> None:
    config = {
        "parameters": {
            "gpt_model_path": {"string_value": "1/engine"},
            "tokenizer_dir": {"string_value": "/elsewhere"},
            "draft_model_path": {"string_value": ""},
            "lora_adapters": {"string_value": '["1/adapters/1.safetensors", "/a/b.safetensors"]'},
        }
    }
    args = {"model_config": json.dumps(config), "model_repository": "/tmp/folder123", "model_version": "1"}
    assert parameters(args) == {
        "gpt_model_path": "/tmp/folder123/1/engine",
        "tokenizer_dir": "/elsewhere",
        "lora_adapters": '["/tmp/folder123/1/adapters/1.safetensors", "/a/b.safetensors"]',
    }


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("0.1.0", "0.1.0", True), ("0.1.0", "0.1.7", True), ("0.1.0", "0.2.0", False), ("1.1.0", "0.1.0", False)],
)
def test_the_first_two_numbers_decide(one: str, other: str, expected: bool) -> None:
    assert compatible(one, other) is expected


def test_a_model_that_another_version_wrote_is_refused_with_both_names_and_what_to_do() -> None:
    config = {"parameters": {"inflight_version": {"string_value": "9.9.0"}}}
    args = {"model_config": json.dumps(config), "model_name": "preprocessing"}
    with raises(RuntimeError, naming=("preprocessing", "9.9.0", __version__, "--vendor")):
        parameters(args)


@pytest.mark.parametrize("written", ["", __version__])
def test_one_of_this_version_or_of_none_is_run(written: str) -> None:
    config = {"parameters": {"inflight_version": {"string_value": written}, "a": {"string_value": "1"}}}
    assert parameters({"model_config": json.dumps(config)})["a"] == "1"

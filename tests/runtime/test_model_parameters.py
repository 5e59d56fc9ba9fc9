"""What a config.pbtxt says about a model, as its code reads it."""

from __future__ import annotations

import json

import pytest

from inflight.runtime.engine import EngineOptions
from inflight.runtime.model_parameters import engine_options, flag, parameters


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
    with pytest.raises(ValueError, match="parameter a is 'perhaps'; it must be true or false"):
        flag({"a": "perhaps"}, "a", default)


def test_the_engine_gets_what_the_model_was_given() -> None:
    settings = {
        "inflight_engine": "fake",
        "gpt_model_path": "/engines/demo",
        "max_tokens_in_paged_kv_cache": "4096",
        "max_num_sequences": "8",
        "max_num_tokens": "128",
        "enable_kv_cache_reuse": "false",
        "inflight_engine_options": '{"step_seconds": "0.01"}',
    }
    assert engine_options(settings) == EngineOptions(
        "fake",
        "/engines/demo",
        4096,
        8,
        128,
        kv_cache_reuse=False,
        chunked_context=True,
        extra={"step_seconds": "0.01"},
    )

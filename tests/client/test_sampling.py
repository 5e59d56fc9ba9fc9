"""Sampling refuses what no server would take, before anything is sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from inflight_client import Guide, InflightError, Sampling

from tests.fixtures.errors import raises


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.0, "top_p": 0.0, "top_k": 0, "seed": 0, "min_tokens": 0, "end_id": -1},
        {"temperature": 5.0, "top_p": 1.0, "top_k": 2**31 - 1, "seed": 2**64 - 1, "end_id": 2**31 - 1},
        {"top_k": np.int64(4), "seed": np.uint64(2**64 - 1), "temperature": np.float32(0.5)},
        {"presence_penalty": -2.0, "frequency_penalty": 2, "repetition_penalty": 1e-6},
    ],
)
def test_values_within_bounds_are_taken(values: dict[str, Any]) -> None:
    Sampling(**values)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("temperature", -0.1, "temperature is -0.1; it must be 0 or more"),
        ("temperature", math.nan, "temperature is nan; it must be 0 or more"),
        ("temperature", math.inf, "temperature is inf; it must be 0 or more"),
        ("temperature", 1e39, "temperature is 1e+39; it must be 0 or more"),
        ("top_k", -1, "top_k is -1; it must be 0 or more"),
        ("top_k", 2**31, "top_k is 2147483648; it must be 0 or more"),
        ("top_k", 1.5, "top_k is 1.5; it must be a whole number"),
        ("top_p", 1.1, "top_p is 1.1; it must be between 0 and 1"),
        ("seed", -1, "seed is -1; it must be 0 or more"),
        ("seed", 2**64, "seed is 18446744073709551616; it must be 0 or more"),
        ("seed", 0.5, "seed is 0.5; it must be a whole number"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0; it must be 1e-06 or more"),
        ("presence_penalty", 2.5, "presence_penalty is 2.5; it must be between -2 and 2"),
        ("frequency_penalty", -2.5, "frequency_penalty is -2.5; it must be between -2 and 2"),
        ("min_tokens", -1, "min_tokens is -1; it must be 0 or more"),
        ("end_id", -2, "end_id is -2; it must be -1 or more"),
        ("temperature", True, "temperature is True; it must be a number"),
        ("temperature", "hot", "temperature is 'hot'; it must be a number"),
        pytest.param("top_p", 10**400, "top_p is 1000", id="top_p beyond floats"),
        pytest.param("top_k", 10**5000, "top_k is a int; it must be 0 or more", id="top_k of many digits"),
        ("stop", None, "stop is None; it must be a text, or a list of texts"),
        ("stop", 5, "stop is 5; it must be a text, or a list of texts"),
        ("bad_words", {"tea"}, "bad_words is {'tea'}; it must be a text, or a list of texts"),
        ("stop", [".", ""], "stop holds ''; each must be a text of at least one character"),
        ("guide", "json", "guide is 'json'; it must be a Guide"),
    ],
)
def test_a_value_out_of_bounds_is_named(name: str, value: Any, sentence: str) -> None:
    with raises(InflightError, "invalid_parameter") as raised:
        Sampling(**{name: value})
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    ("kind", "text"), [([], "x"), ("haiku", "x"), ("regex", ""), ("regex", None), ("regex", "\ud800")]
)
def test_a_guide_has_a_type_and_a_text(kind: Any, text: Any) -> None:
    code = "invalid_text" if text == "\ud800" else "invalid_parameter"
    with raises(InflightError, code, naming="guide"):
        Guide(kind, text)

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


INVALID: list[tuple[str, Any]] = [
    *(("temperature", value) for value in (-0.1, math.nan, math.inf, 1e39, True, "hot")),
    *(("top_k", value) for value in (-2, 2**31, 1.5, 10**5000)),
    *(("top_p", value) for value in (1.1, 10**400)),
    *(("seed", value) for value in (-1, 2**64, 0.5)),
    *(("repetition_penalty", 0.0), ("presence_penalty", 2.5), ("frequency_penalty", -2.5)),
    *(("min_tokens", -1), ("end_id", -2), ("guide", "json")),
    *(("stop", value) for value in (None, 5, [".", ""])),
    *(("min_p", value) for value in (-0.1, 1.5)),
    *(
        ("logit_bias", value)
        for value in (5, {"a": 1}, {-1: 1}, {5: math.nan}, {5: None}, dict.fromkeys(range(1025), 1))
    ),
    *(("allowed_token_ids", value) for value in (5, [-1], [1.5], ["a"])),
    ("bad_words", {"tea"}),
]


@pytest.mark.parametrize(("name", "value"), INVALID, ids=[str(number) for number in range(len(INVALID))])
def test_a_value_out_of_bounds_is_named(name: str, value: Any) -> None:
    with raises(InflightError, "invalid_parameter", naming=name):
        Sampling(**{name: value})


@pytest.mark.parametrize(
    ("kind", "text"), [([], "x"), ("haiku", "x"), ("regex", ""), ("regex", None), ("regex", "\ud800")]
)
def test_a_guide_has_a_type_and_a_text(kind: Any, text: Any) -> None:
    code = "invalid_text" if text == "\ud800" else "invalid_parameter"
    with raises(InflightError, code, naming="guide"):
        Guide(kind, text)

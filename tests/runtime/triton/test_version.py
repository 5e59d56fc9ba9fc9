from __future__ import annotations

import json

import pytest

from inflight import __version__, compatible
from inflight.runtime.triton.model_parameters import parameters
from tests.fixtures.errors import raises


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

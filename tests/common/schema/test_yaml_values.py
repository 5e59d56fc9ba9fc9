"""YAML that people write: plain values, each key once."""

from __future__ import annotations

import pytest
import yaml

from inflight.common.schema.yaml_values import load_values
from tests.fixtures.errors import raises


def test_what_json_can_hold_is_taken_as_it_is() -> None:
    text = "a: [1, 2.5, true, null, text, '2026-01-01']\nb: &b {c: {}}\nd: *b\n"
    assert load_values(text) == {"a": [1, 2.5, True, None, "text", "2026-01-01"], "b": {"c": {}}, "d": {"c": {}}}
    assert load_values("") is None


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "b: {c: 1, c: 1}", "a: [", "? [a]\n: 1\n? [a]\n: 2\n"])
def test_a_key_twice_is_as_wrong_as_no_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_values(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 2026-01-01", "a is 2026-01-01"),
        ("a: {b: [1, .inf]}", "a.b.1 is inf"),
        ("a: !!binary aGVsbG8=", "a is b'hello'"),
        ("1: a", "1"),
        ("&a [*a]", "nested"),
    ],
)
def test_other_kinds_are_refused_in_a_line(text: str, said: str) -> None:
    with raises(ValueError, naming=said):
        load_values(text)

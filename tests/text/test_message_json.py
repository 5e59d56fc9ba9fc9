from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.common.request_error import RequestError
from inflight.text.message_json import MAX_DEPTH, MAX_VALUES, parse_kwargs, parse_messages
from tests.fixtures.errors import raises


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"{}", b'"hello"', b"[" * 60, b'["\\"]', "[]".encode("utf-16")])
def test_messages_that_are_no_json_array_are_refused(raw: bytes) -> None:
    with raises(RequestError, "invalid_messages", naming="messages"):
        parse_messages(raw)


def test_template_arguments_are_a_json_object() -> None:
    assert parse_kwargs(b"") == {}
    assert parse_kwargs(b'{"enable_thinking": false}') == {"enable_thinking": False}
    with raises(RequestError, "invalid_messages", naming="JSON"):
        parse_kwargs(b"[]")


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'["\\\\",', b'["\\"]",'])
def test_depth_is_bounded_whatever_the_strings_hold(opening: bytes) -> None:
    closing = b"}" if opening.startswith(b"{") else b"]"
    inside = opening * (MAX_DEPTH - 2) + b'"[[{"' + closing * (MAX_DEPTH - 2)
    assert parse_messages(b"[" + inside + b"]")
    for raw in (b"[" + opening + inside + closing + b",[]]", b"[[" + inside + b"]", opening * 100_000):
        kwargs = raw + (b"," + raw if raw.endswith(b"[]]") else b"")
        with raises(RequestError, "invalid_messages"):
            parse_messages(b"[" + kwargs + b"]")


@pytest.mark.parametrize("each", ["0", '""', "[]", "{}", '{"a":"b"}'])
def test_the_number_of_values_is_bounded_before_they_are_made(each: str) -> None:
    raw = "[" + ",".join([each] * (MAX_VALUES + 1)) + "]"
    with raises(RequestError, "invalid_messages", naming=("messages", str(MAX_VALUES))):
        parse_messages(raw.encode())


def test_long_texts_are_one_value() -> None:
    text = '[{,"' * 500_000
    assert parse_messages(json.dumps([{"role": "user", "content": text}]).encode())[0]["content"] == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda held: st.lists(held, max_size=4) | st.dictionaries(st.text(), held, max_size=4),
    max_leaves=20,
)


@settings(max_examples=30, deadline=None)
@given(value=st.lists(JSON), ascii_only=st.booleans())
def test_any_shallow_json_is_taken(value: list[Any], ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert parse_messages(raw) == json.loads(raw)

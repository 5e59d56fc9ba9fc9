"""A call is checked before anything is sent: each wrong option by its name, and messages to their depths."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from inflight_client import InflightError
from inflight_client.call import Call, validate_request_id

from tests.fixtures.errors import raises

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CHAT = [{"role": "user", "content": "Tea?"}]


def refusal(prompt: Any = "Tea?", **options: Any) -> tuple[str, str]:
    with pytest.raises(InflightError) as raised:
        Call(prompt, False, **options)
    return raised.value.code, str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": np.int64(5), "priority": -3},
        {"timeout": 0.001, "first_token_timeout": 31_000_000},
        {"timeout": np.float32(2), "first_token_timeout": Fraction(1, 3)},
        {"timeout": None, "return_token_ids": None, "traceparent": TRACE},
        {"tenant": "tea house", "request_id": "a" * 128},
    ],
)
def test_values_within_bounds_are_taken(options: dict[str, Any]) -> None:
    call = Call("Tea?", True, **options)
    assert all(getattr(call, name) == value for name, value in options.items())


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("timeout", 1e10, "timeout is 10000000000.0; it must be a number of seconds above 0 and at most 31622400"),
        ("first_token_timeout", 1e10, "first_token_timeout is 10000000000.0; it must be a number of seconds above 0"),
        pytest.param("timeout", 10**5000, "timeout is a int; it must be", id="timeout of many digits"),
        ("timeout", math.inf, "timeout is inf; it must be"),
        ("timeout", math.nan, "timeout is nan; it must be"),
        ("timeout", 0, "timeout is 0; it must be"),
        ("timeout", True, "timeout is True; it must be"),
        ("timeout", "5", "timeout is '5'; it must be"),
        ("max_tokens", 0, "max_tokens is 0; it must be a whole number from 1 to 2147483647"),
        ("max_tokens", True, "max_tokens is True; it must be a whole number"),
        ("max_tokens", 2.0, "max_tokens is 2.0; it must be a whole number"),
        ("top_log_probs", 21, "top_log_probs is 21; it must be a whole number from 0 to 20"),
        ("return_prompt_log_probs", 1, "return_prompt_log_probs is 1; it must be True or False"),
        ("priority", 2**31, "priority is 2147483648; it must be a whole number"),
        ("sampling", {"temperature": 1}, "sampling is {'temperature': 1}; it must be a Sampling"),
        ("tenant", "té", "tenant is 'té'; it must be at most 128 printable ASCII characters"),
        ("request_id", None, "request_id is None; it must be at most 128 printable ASCII characters"),
        ("traceparent", "00-" + "0" * 32 + TRACE[35:], "traceparent is '00-0000"),
        ("traceparent", TRACE[:36] + "0" * 16 + "-01", "traceparent is '00-4bf9"),
        ("traceparent", "ff" + TRACE[2:], "traceparent is 'ff-4bf9"),
        ("traceparent", TRACE.upper(), "traceparent is '00-4BF9"),
        ("return_log_probs", "yes", "return_log_probs is 'yes'; it must be True or False"),
        ("return_perf_metrics", None, "return_perf_metrics is None; it must be True or False"),
        ("chat_template_kwargs", "abc", "chat_template_kwargs is 'abc'; it must be a mapping"),
        ("chat_template_kwargs", None, "chat_template_kwargs is None; it must be a mapping"),
    ],
)
def test_a_wrong_option_is_named(name: str, value: Any, sentence: str) -> None:
    code, said = refusal(**{name: value})
    assert code == "invalid_parameter"
    assert said.startswith(sentence)
    assert len(said) < 250
    assert "\n" not in said


@pytest.mark.parametrize(
    ("prompt", "code", "words"),
    [
        (None, "invalid_parameter", "the prompt is a NoneType; it must be a text or a list of messages"),
        (b"tea", "invalid_parameter", "the prompt is a bytes"),
        (CHAT[0], "invalid_parameter", "the prompt is a dict; it must be a text or a list of messages"),
        ((message for message in CHAT), "invalid_parameter", "the prompt is a generator"),
        ("\ud800", "invalid_text", "the prompt can't be encoded as UTF-8"),
        ([], "invalid_messages", "there are no messages"),
        ([1, 2], "invalid_messages", "message 0 is 1; each must be a mapping with a role"),
        ([{"content": "Tea?"}], "invalid_messages", "message 0 is {'content': 'Tea?'}; each must be"),
    ],
)
def test_a_prompt_is_a_text_or_messages(prompt: Any, code: str, words: str) -> None:
    said = refusal(prompt)
    assert said[0] == code
    assert said[1].startswith(words)


def endless() -> list[Any]:
    held: list[Any] = []
    held.append({"again": held})
    return held


WRONG_JSON = [
    (b"tea", " has the type bytes, which JSON lacks"),
    ({"tea"}, " has the type set, which JSON lacks"),
    ((word for word in ("tea",)), " has the type generator, which JSON lacks"),
    ([1, {"x": object()}], "[1].x has the type object, which JSON lacks"),
    (np.int64(3), " has the type int64, which JSON lacks"),
    ({("a", "b"): 1}, " has the key ('a', 'b') of type tuple; JSON keys must be strings"),
    ({1: 2}, " has the key 1 of type int; JSON keys must be strings"),
    (endless(), "is nested more than 64 levels deep or contains itself"),
    (math.nan, "a number that JSON can't represent"),
    (10**5000, "a number that JSON can't represent"),
    ("\ud800", "text that can't be encoded as UTF-8"),
    ({"\udfff": 1}, "text that can't be encoded as UTF-8"),
]


@pytest.mark.parametrize(("value", "words"), WRONG_JSON, ids=lambda value: type(value).__name__)
def test_what_json_has_not_is_refused_where_it_stands(value: Any, words: str) -> None:
    for code, said in (
        refusal([{"role": "user", "content": value}]),
        refusal(CHAT, chat_template_kwargs={"content": value}),
    ):
        assert code == "invalid_messages"
        assert words in said
        assert len(said) < 250
    assert refusal([*CHAT, {"role": "user", "content": {1}}])[1].startswith("messages[1].content has the type set")


def test_keywords_of_a_template_are_text() -> None:
    assert "JSON keys must be strings" in refusal(CHAT, chat_template_kwargs={1: 2})[1]


def test_a_generator_in_messages_is_not_used_up() -> None:
    words = iter(["tea"])
    refusal([{"role": "user", "content": words}])
    assert next(words) == "tea"


def test_arguments_of_a_template_go_with_messages() -> None:
    code, said = refusal("Tea?", chat_template_kwargs={"enable_thinking": False})
    assert code == "invalid_messages"
    assert said == "chat_template_kwargs needs messages, and the prompt has none; leave it out, or send messages"
    assert Call("Tea?", False, chat_template_kwargs={}).messages_json == ""


def test_messages_are_sent_as_they_were_when_asked() -> None:
    chat: Any = [
        MappingProxyType({"role": "user", "content": OrderedDict(text="Thé?"), "n": (1, 2.5, None, True)}),
        {"role": "assistant", "content": "Oui"},
    ]
    tools: Any = {"tools": [{"name": "kettle"}]}
    call = Call(chat, False, chat_template_kwargs=tools)
    chat[1]["content"] = tools["tools"][0]["name"] = "changed"
    assert json.loads(call.messages_json) == [
        {"role": "user", "content": {"text": "Thé?"}, "n": [1, 2.5, None, True]},
        {"role": "assistant", "content": "Oui"},
    ]
    assert "Thé?" in call.messages_json
    assert json.loads(call.template_kwargs_json) == {"tools": [{"name": "kettle"}]}


@pytest.mark.parametrize("value", ["", None, 5, b"mine", "\ud800"])
def test_an_id_to_cancel_by_is_text(value: Any) -> None:
    code = "invalid_text" if value == "\ud800" else "invalid_parameter"
    with raises(InflightError, code, naming="request_id"):
        validate_request_id(value)


def test_other_clients_ids_can_be_cancelled() -> None:
    assert validate_request_id("thé " * 100) == "thé " * 100

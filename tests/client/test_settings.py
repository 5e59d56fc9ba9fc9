"""What a client is made with is checked when it is made, and its options by their names."""

from __future__ import annotations

import math
import uuid
from pathlib import Path
from typing import Any

import pytest
from inflight_client import AsyncClient, Client, InflightError
from inflight_client.settings import ClientSettings

from tests.fixtures.errors import raises


def settings(**given: Any) -> ClientSettings:
    usual = dict.fromkeys(("model", "headers", "tls", "timeout", "chat_template", "metrics_url"))
    return ClientSettings.from_arguments(**{"address": "localhost:8001", **usual, **given})


INVALID: list[tuple[str, Any, str]] = [
    *(("timeout", value, f"timeout is {value!r}") for value in (-1, "5", 1e10, math.nan)),
    *(("model", value, f"model is {value!r}") for value in ("", 5, "a\nb")),
    *(("headers", "abc", "headers"), ("headers", {"x-bin": "abc"}, "'x-bin'")),
    *(("tls", "ca.pem", "tls is 'ca.pem'"), ("retry", 3, "retry is 3"), ("retry", 0, "retry is 0")),
    *(("chat_template", 5, "chat_template is 5"), ("chat_template", "", "chat_template is ''")),
    *(("metrics_url", 8002, "metrics_url is 8002"), ("address", 8001, "address is 8001")),
]
"""Arguments that a client can't be made with, and what the error names."""


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("name", "value", "named"), INVALID)
def test_a_client_is_not_made_with_what_can_not_be_used(kind: Any, name: str, value: Any, named: str) -> None:
    with raises(InflightError, "invalid_parameter", naming=named):
        kind(**{name: value})


@pytest.mark.parametrize(("query", "sent"), [("?key=TEA_KEY", "Bearer tea"), ("", "Bearer general")])
def test_the_key_that_an_address_names_is_used_rather_than_a_general_one(
    monkeypatch: pytest.MonkeyPatch, query: str, sent: str
) -> None:
    monkeypatch.setenv("TEA_KEY", "tea")
    given = {"authorization": "Bearer general"}
    made = settings(address=f"openai+https://tea.example/v1{query}", headers=given)
    assert made.headers["authorization"] == sent


def test_a_directory_without_a_template_is_told_at_once(tmp_path: Path) -> None:
    with raises(InflightError, "no_chat_template"):
        settings(chat_template=tmp_path)


def test_a_call_takes_the_clients_timeout_and_an_id_of_its_own() -> None:
    given = settings(timeout=7)
    first, second = (given.call("Tea?", {}, stream=True) for _ in range(2))
    assert (first.timeout, first.stream) == (7, True)
    assert first.request_id != second.request_id
    assert uuid.UUID(first.request_id)
    own = given.call("Tea?", {"timeout": None, "request_id": "mine"}, stream=False)
    assert (own.timeout, own.request_id) == (None, "mine")


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"stop": "."}])
@pytest.mark.parametrize("method", ["generate", "stream", "generate_many"])
def test_an_option_of_sampling_is_told_where_it_belongs(method: str, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with Client() as client, pytest.raises(TypeError) as raised:
        list(getattr(client, method)(["Tea?"] if method == "generate_many" else "Tea?", **options))
    assert str(raised.value) == (
        f"{method}() got an unexpected keyword argument {name!r};"
        f" pass sampling options as sampling=Sampling({name}=...)"
    )


@pytest.mark.parametrize("name", ["max_new_tokens", "stream", "prompts"])
def test_an_unknown_option_is_told_those_that_there_are(name: str) -> None:
    options: Any = {name: True}
    with Client() as client, pytest.raises(TypeError) as raised:
        client.generate("Tea?", **options)
    assert str(raised.value).startswith(
        f"generate() got an unexpected keyword argument {name!r}; it takes max_tokens, sampling, timeout,"
    )
    assert "Call" not in str(raised.value)


@pytest.mark.parametrize("name", ["query", "max_tokens", "openai"])
def test_an_unknown_option_of_an_encoder_is_told_those_that_there_are(name: str) -> None:
    options: Any = {name: True}
    with Client() as client, pytest.raises(TypeError) as raised:
        client.embed("Tea?", **options)
    assert str(raised.value) == (
        f"embed() got an unexpected keyword argument {name!r}; it takes truncate, priority, timeout, return_errors"
    )


def test_what_is_wrong_with_each_of_many_is_raised_before_the_first() -> None:
    with Client() as client:
        with raises(InflightError, "invalid_parameter", naming=("max_tokens", "0")):
            client.generate_many(["Tea?"], max_tokens=0)
        with raises(InflightError, "invalid_parameter", naming="prompts"):
            client.generate_many("ab")
        with raises(InflightError, "invalid_parameter", naming="concurrency"):
            client.generate_many(["Tea?"], concurrency=0)
        client.generate_many([[{"role": "user", "content": "Tea?"}]], chat_template_kwargs={"n": 1}).close()


@pytest.mark.parametrize(
    "method", ["health", "ready", "models", "metrics", "deployment", "cancel", "server", "model_config"]
)
@pytest.mark.parametrize("timeout", ["1", -1, 0, 1e10, True])
def test_questions_name_a_wrong_timeout(method: str, timeout: Any) -> None:
    arguments = ("mine",) if method in ("cancel", "model_config") else ()
    with Client() as client, raises(InflightError, "invalid_parameter", naming="timeout"):
        getattr(client, method)(*arguments, timeout=timeout)


@pytest.mark.parametrize("request_id", ["", None, 5])
def test_nothing_is_cancelled_by_no_id(request_id: Any) -> None:
    with Client() as client, raises(InflightError, "invalid_parameter", naming="request_id"):
        client.cancel(request_id)

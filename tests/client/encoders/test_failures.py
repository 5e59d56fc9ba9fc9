"""Calls of encoders of which something fails: a text, a request, the model, the time, the caller."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from inflight_client import AsyncClient, Client, InflightError, Overloaded, Unsupported
from inflight_client.errors import DeadlineExceeded, InvalidRequest, ModelNotReady
from inflight_client.retry import NO_RETRY
from tritonclient.grpc import service_pb2

from tests.client.encoders.test_calls import address, check_rows
from tests.client.support.client_variants import ClientVariant, both_protocols
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.leak_checks import held_resources
from tests.client.support.scripted_encoder import expected_vector
from tests.client.support.scripted_server import serving
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until, wait_until_async


@pytest.fixture
def client(way: ClientVariant, scripted_encoders: EncoderServer) -> Iterator[Client]:
    with way.client_at(way.url(address(way, scripted_encoders)), retry=None) as found:
        yield found  # type: ignore[misc]


def texts_with(index: int, text: str, count: int = 600) -> list[str]:
    return [text if number == index else f"text {number}" for number in range(count)]


INVALID_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str]] = [
    ("embed", (7,), {}, "invalid_parameter", "texts"),
    ("embed", (b"tea",), {}, "invalid_parameter", "texts"),
    ("embed", ([7, 8],), {}, "invalid_parameter", "texts[0]"),
    ("embed", (["tea", None],), {}, "invalid_parameter", "texts[1]"),
    ("embed", (["\ud800"],), {}, "invalid_text", "texts[0]"),
    ("embed", ([[1, -1]],), {}, "invalid_token_ids", "-1"),
    ("embed", ([[1, 2**31]],), {}, "invalid_token_ids", "texts[0]"),
    ("embed", ([[]],), {}, "empty_prompt", "texts[0]"),
    ("embed", ("tea",), {"dimensions": 0}, "invalid_parameter", "dimensions"),
    ("embed", ("tea",), {"input_type": ""}, "invalid_parameter", "input_type"),
    ("embed", ("tea",), {"truncate": "yes"}, "invalid_parameter", "truncate"),
    ("embed", ("tea",), {"priority": 2**31}, "invalid_parameter", "priority"),
    ("embed", ("tea",), {"timeout": 0}, "invalid_parameter", "timeout"),
    ("rerank", (None, ["tea"]), {}, "invalid_parameter", "query"),
    ("rerank", ("tea?", [[1]]), {}, "invalid_parameter", "documents[0]"),
    ("rerank", ("tea?", ["tea"]), {"top_n": 0}, "invalid_parameter", "top_n"),
    ("classify", ({"a": 1},), {}, "invalid_parameter", "texts"),
]


@both_protocols
def test_the_error_of_a_text_is_raised_with_its_index(client: Client) -> None:
    with raises(InvalidRequest, "prompt_too_long", naming="texts[580]"):
        client.embed(texts_with(580, "fail prompt_too_long"))
    with raises(InvalidRequest, "prompt_too_long", naming="documents[1100]"):
        client.rerank("?", texts_with(1100, "fail prompt_too_long", 1200))


@both_protocols
def test_errors_of_texts_are_returned_beside_the_others(client: Client) -> None:
    texts = texts_with(580, "fail prompt_too_long")
    texts[3], texts[4] = "\ud800", 7  # type: ignore[call-overload]
    found = client.embed(texts, return_errors=True)
    assert {index: error.code for index, error in found.errors.items()} == {
        3: "invalid_text",
        4: "invalid_parameter",
        580: "prompt_too_long",
    }
    for index, text in enumerate(texts):
        if index in found.errors:
            assert np.isnan(found[index]).all()
            assert (found.input_tokens[index], found.truncated[index]) == (0, False)
        else:
            assert np.array_equal(found[index], expected_vector(text))


@both_protocols
def test_a_document_with_an_error_is_not_ranked(client: Client) -> None:
    found = client.rerank("?", ["a", "fail empty_prompt", "b"], return_errors=True)
    assert {document.index for document in found} == {0, 2}
    assert found.errors[1].code == "empty_prompt"
    classes = client.classify(["a", "fail empty_prompt"], return_errors=True)
    assert (classes[1].label, classes[1].scores, classes.errors[1].code) == ("", {}, "empty_prompt")


@both_protocols
def test_what_fails_for_a_while_is_sent_again(client: Client, way: ClientVariant) -> None:
    texts = texts_with(5, f"once engine_restarting {way}", 300)
    texts[290] = f"once request overloaded {way}"
    check_rows(client.embed(texts), texts)


@both_protocols
def test_a_text_that_keeps_failing_fails_alone(way: ClientVariant, scripted_encoders: EncoderServer) -> None:
    with way.client_at(way.url(address(way, scripted_encoders)), retry=NO_RETRY) as client:
        texts = texts_with(5, "fail overloaded")
        with raises(Overloaded, "overloaded", naming="texts[5]"):
            client.embed(texts)  # type: ignore[attr-defined]
        found = client.embed(texts, return_errors=True)  # type: ignore[attr-defined]
        assert {index: error.code for index, error in found.errors.items()} == {5: "overloaded"}


@both_protocols
def test_a_request_that_fails_spares_the_others(client: Client) -> None:
    texts = texts_with(5, "request invalid_request")
    with raises(InvalidRequest, "invalid_request"):
        client.embed(texts)
    found = client.embed(texts, return_errors=True)
    assert set(found.errors) == set(range(256))
    assert np.array_equal(found[256], expected_vector("text 256"))
    with raises(InvalidRequest, "invalid_request"):  # as no text has an answer
        client.embed(["request invalid_request"], return_errors=True)


@both_protocols
def test_an_exception_of_the_model_s_code_is_one_sentence(client: Client) -> None:
    with raises(InvalidRequest, "model_failed") as caught:
        client.embed("raise")
    assert "asks for it" not in str(caught.value)
    assert "\n" not in str(caught.value)


@both_protocols
def test_a_missing_model_is_named_with_the_next_step(way: ClientVariant, scripted_encoders: EncoderServer) -> None:
    url = way.url(address(way, scripted_encoders))
    with way.client_at(url, model="nothere") as client, raises(ModelNotReady, "model_not_found", naming="--classify"):
        client.classify("tea")  # type: ignore[attr-defined]
    with way.client_at(url, model="rerank") as client, raises(Unsupported, "unsupported_deployment", naming="rerank"):
        client.embed("tea")  # type: ignore[attr-defined]


@both_protocols
def test_the_timeout_is_for_the_whole_call(client: Client) -> None:
    texts = [f"wait {0.1 + number / 1e6}" if number % 256 == 0 else "tea" for number in range(1500)]
    with raises(DeadlineExceeded, "deadline_exceeded"):
        client.embed(texts, timeout=0.25)
    check_rows(client.embed("tea"), ["tea"])


@pytest.mark.parametrize(
    ("method", "values", "options", "code", "naming"),
    INVALID_CALLS,
)
def test_what_no_model_takes_is_not_sent(
    method: str, values: Any, options: dict[str, Any], code: str, naming: str
) -> None:
    with Client("127.0.0.1:9") as client, raises(InflightError, code, naming=naming):
        getattr(client, method)(*values, **options)


def test_only_the_asyncio_client_reads_asynchronous_texts() -> None:
    async def source() -> Any:
        yield "tea"

    with Client("127.0.0.1:9") as client, raises(InflightError, "invalid_parameter", naming="AsyncClient"):
        client.embed(source())


def test_the_exception_of_the_texts_source_is_the_callers(scripted_encoders: EncoderServer) -> None:
    def source() -> Iterator[str]:
        yield from (f"text {number}" for number in range(300))
        raise KeyError("no more")

    with Client(scripted_encoders.grpc_address) as client, pytest.raises(KeyError):
        client.embed(source())


class Hung:
    """Answers no request, and counts those that wait; `refuse` says which text's request is refused instead."""

    def __init__(self, refuse: bytes = b"-") -> None:
        self.waiting = 0
        self._refuse = refuse
        self._lock = threading.Lock()

    def has(self, waiting: int) -> bool:
        return self.waiting == waiting

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if self._refuse in request.raw_input_contents[0]:
            wait_until(lambda: self.waiting >= 3)
            yield service_pb2.ModelStreamInferResponse(error_message="it is refused [empty_prompt]")
            return
        with self._lock:
            self.waiting += 1
        while context.is_active():
            time.sleep(0.01)
        with self._lock:
            self.waiting -= 1


TEXTS = [f"text {number}." for number in range(1024)]


def test_an_error_cancels_the_requests_in_flight() -> None:
    hung = Hung(refuse=b"text 1000.")
    with serving(hung) as (_, where), Client(where) as client:
        threads = held_resources().threads
        with raises(InvalidRequest, "empty_prompt"):
            client.embed(TEXTS)
        wait_until(lambda: hung.waiting == 0)
        wait_until(lambda: not [each for each in held_resources().threads - threads if "inflight" in each.name])


def test_an_input_that_an_older_server_lacks_is_named() -> None:
    def refuse(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        message = "unexpected inference input 'source_language' for model 'text2text'"
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        yield

    named = raises(Unsupported, "unsupported_input", naming="source_language")
    with serving(refuse) as (_, where), Client(where) as client, named:
        client.translate("tea", source_language="fr")


def test_cancelling_the_task_cancels_its_requests() -> None:
    hung = Hung()

    async def run(where: str) -> None:
        async with AsyncClient(where) as client:
            for texts in (TEXTS, TEXTS[:1]):
                task = asyncio.create_task(client.embed(texts))
                await wait_until_async(functools.partial(hung.has, min(4, len(texts))))
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                assert task.cancelled()
                await wait_until_async(functools.partial(hung.has, 0))

    with serving(hung) as (_, where):
        asyncio.run(run(where))


def test_closing_the_client_ends_its_calls() -> None:
    hung = Hung()
    with serving(hung) as (_, where):
        client = Client(where)
        failures: list[InflightError] = []

        def call() -> None:
            try:
                client.embed(TEXTS)
            except InflightError as error:
                failures.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        wait_until(lambda: hung.waiting == 4)
        client.close()
        thread.join(60)
        assert [error.code for error in failures] == ["client_closed"]
        wait_until(lambda: hung.waiting == 0)

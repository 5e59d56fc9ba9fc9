"""Embeddings, rerankings and classes of any number of texts, by all four ways to a real Triton."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from inflight_client import AsyncClient, Client, InflightError
from inflight_client.encodings import Embeddings

from tests.client.support.client_variants import ClientVariant, both_protocols
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_encoder import DIMENSIONS, LABELS, expected_translation, expected_vector
from tests.fixtures.errors import raises


@pytest.fixture
def client(way: ClientVariant, scripted_encoders: EncoderServer) -> Iterator[Client]:
    with way.client_at(way.url(address(way, scripted_encoders))) as found:
        yield found  # type: ignore[misc]


def address(way: ClientVariant, server: EncoderServer) -> str:
    return server.grpc_address if way.protocol == "grpc" else server.http_address


def check_rows(found: Embeddings, texts: list[str], input_type: str = "") -> None:
    assert found.vectors.shape == (len(texts), DIMENSIONS)
    assert found.vectors.dtype == np.float32
    for row, text in zip(found, texts, strict=True):
        assert np.array_equal(row, expected_vector(text, input_type)), text
    assert found.input_tokens == tuple(len(text.split()) for text in texts)
    assert found.total_tokens == sum(found.input_tokens)
    assert found.truncated == tuple(text.endswith("!") for text in texts)
    assert not found.errors


@both_protocols
@pytest.mark.parametrize("count", [0, 1, 2, 256, 257, 1100])
def test_any_number_of_texts_keeps_its_order(client: Client, count: int) -> None:
    texts = [f"text {number} {'お茶' * (number % 400)}{'!' * (number % 3)}" for number in range(count)]
    found = client.embed(texts)
    if count:
        check_rows(found, texts)
    assert (len(found), found.model) == (count, "embedding")


@both_protocols
def test_one_text_is_one_row(client: Client) -> None:
    check_rows(client.embed("green tea"), ["green tea"])
    assert client.classify("green tea")[0].label in LABELS
    assert len(client.rerank("tea?", "a drink")) == 1


@both_protocols
def test_texts_are_read_from_a_generator(client: Client) -> None:
    texts = [f"text {number}" for number in range(600)]
    check_rows(client.embed(iter(texts)), texts)


def test_texts_are_read_from_an_asynchronous_generator(scripted_encoders: EncoderServer) -> None:
    texts = [f"text {number}" for number in range(600)]

    async def source() -> AsyncIterator[str]:
        for text in texts:
            yield text
            await asyncio.sleep(0)

    async def run() -> Embeddings:
        async with AsyncClient(scripted_encoders.grpc_address) as client:
            return await client.embed(source())

    check_rows(asyncio.run(run()), texts)


@both_protocols
def test_token_ids_take_the_place_of_texts(client: Client) -> None:
    found = client.embed([[7, 8, 9], "7 8 9", np.array([5]), (1,) * 40])
    assert found.input_tokens == (3, 3, 1, 40)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[2], expected_vector("5"))


@both_protocols
def test_options_are_sent_with_each_text(client: Client) -> None:
    texts = [f"text {number}" for number in range(300)]
    found = client.embed(texts, input_type="query", dimensions=4, truncate=True, priority=-3)
    assert found.dimensions == 4
    assert np.array_equal(found[299], expected_vector("text 299", "query", 4))


@both_protocols
def test_documents_are_ranked_best_first(client: Client) -> None:
    documents = [f"document {number}" for number in range(2500)]
    scores = [float(expected_vector("tea?" + document)[0]) for document in documents]
    order = sorted(range(len(documents)), key=lambda index: -scores[index])
    found = client.rerank("tea?", documents, top_n=5)
    assert [document.index for document in found] == order[:5]
    assert [document.score for document in found] == [scores[index] for index in order[:5]]
    assert found.scores == tuple(scores)
    assert len(found.input_tokens) == 2500
    assert [document.index for document in client.rerank("tea?", documents)] == order


@both_protocols
def test_classes_are_the_best_labels(client: Client) -> None:
    texts = [f"text {number}" for number in range(300)]
    for found, text in zip(client.classify(texts), texts, strict=True):
        scores = dict(zip(LABELS, expected_vector(text).tolist(), strict=False))
        assert found.scores == scores
        assert (found.label, found.score) == max(scores.items(), key=lambda each: each[1])


@both_protocols
def test_values_that_are_no_numbers_stay_in_their_row(client: Client) -> None:
    found = client.embed(["a", "nan", "b"])
    assert [bool(np.isnan(row).all()) for row in found] == [False, True, False]
    assert math.isnan(client.rerank("?", ["a", "nan"]).scores[1])


@both_protocols
def test_a_server_with_encoders_alone_is_healthy(client: Client) -> None:
    assert client.ready()
    assert [model.name for model in client.models()] == ["classify", "embedding", "rerank", "whisper"]


def test_many_callers_get_their_own_rows(scripted_encoders: EncoderServer) -> None:
    """Threads and tasks that share a client, each with calls of random sizes."""

    def texts_of(caller: int) -> Iterator[list[str]]:
        chance = random.Random(caller)
        for call in range(6):
            count = chance.choice((1, 3, 40, 255, 256, 257, 700))
            yield [f"{caller} {call} {number} {'x' * chance.randrange(600)}" for number in range(count)]

    with (
        Client(scripted_encoders.grpc_address) as grpc,
        Client(f"http://{scripted_encoders.http_address}") as http,
        ThreadPoolExecutor(16) as pool,
    ):

        def call_all(caller: int) -> None:
            for texts in texts_of(caller):
                check_rows((grpc, http)[caller % 2].embed(texts), texts)

        async def call_all_async(client: AsyncClient, caller: int) -> None:
            for texts in texts_of(caller):
                check_rows(await client.embed(texts), texts)

        async def tasks() -> None:
            async with AsyncClient(scripted_encoders.grpc_address) as client:
                await asyncio.gather(*(call_all_async(client, caller) for caller in range(100, 116)))

        threads = [pool.submit(call_all, caller) for caller in range(16)]
        asyncio.run(tasks())
        for thread in threads:
            thread.result()


@both_protocols
def test_texts_are_translated_with_their_options(client: Client) -> None:
    texts = [f"text {number}" for number in range(300)]
    languages: Any = {"target_language": "de", "source_language": "en"}
    found = client.translate(texts, **languages, beam_width=4, length_penalty=0.5, max_tokens=9, priority=2)
    numbers = {"beam_width": 4.0, "length_penalty": 0.5, "max_tokens": 9.0, "priority": 2.0}
    options = {"target_prefix": "de", "source_language": "en", **numbers}
    assert list(found) == [expected_translation(text, **options) for text in texts]
    assert (found.input_tokens[0], found.output_tokens[0], found.model) == (2, 8, "text2text")
    partly = client.translate(["tea", "fail prompt_too_long"], return_errors=True)
    assert (partly[0], partly[1], partly.errors[1].code) == ("TEA", "", "prompt_too_long")
    assert len(client.translate([])) == 0
    with raises(InflightError, "invalid_parameter", naming="beam_width"):
        client.translate("tea", beam_width=33)

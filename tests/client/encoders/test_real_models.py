"""Calls of the real encoders, at Triton beside a model that generates text, and through a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from inflight_client import AsyncClient, Client, InflightError

from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_encoder import LABELS, expected_vector
from tests.fixtures.encoder_server import NAN_WORD
from tests.fixtures.errors import raises
from tests.fixtures.gateway import running_gateway
from tests.serving.metrics_page import page_of, page_when

TEXTS = [f"tea {'leaves ' * (number % 23)}{number}" for number in range(300)]


@pytest.fixture(scope="module")
def encoder_gateway(mixed_server: Server) -> Iterator[GatewayProcesses]:
    with running_gateway(mixed_server) as running:
        yield running


@pytest.fixture(scope="module")
def addresses(mixed_server: Server, encoder_gateway: GatewayProcesses) -> dict[str, str]:
    return {
        "grpc": mixed_server.grpc_address,
        "http": f"http://{mixed_server.http_address}",
        "gateway": encoder_gateway.url,
    }


@pytest.fixture(params=["grpc", "http", "gateway"])
def client(request: pytest.FixtureRequest, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Client(addresses[request.param]) as found:
        yield found


@pytest.fixture(scope="module")
def alone(mixed_server: Server) -> Any:
    """The results of a few texts, each sent alone."""
    with Client(mixed_server.grpc_address) as client:
        return {place: client.embed(TEXTS[place]) for place in (0, 5, 22, 150, 299)}


def test_a_vector_is_that_of_its_text_alone(client: Client, alone: Any) -> None:
    found = client.embed(TEXTS)
    for place, expected in alone.items():
        np.testing.assert_allclose(found[place], expected[0], atol=1e-5)
        assert found.input_tokens[place] == expected.input_tokens[0]


def test_asyncio_gives_the_same(addresses: dict[str, str], alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    async def call(address: str) -> Any:
        async with AsyncClient(address) as client:
            return await client.embed(TEXTS)

    for address in addresses.values():
        found = asyncio.run(call(address))
        for place, expected in alone.items():
            np.testing.assert_allclose(found[place], expected[0], atol=1e-5)


def test_texts_over_the_limit_are_refused_or_cut(client: Client) -> None:
    texts = ["tea", "tea " * 5000, "coffee"]
    with raises(InflightError, "prompt_too_long", naming="1"):
        client.embed(texts)
    found = client.embed(texts, return_errors=True)
    assert {place: error.code for place, error in found.errors.items()} == {1: "prompt_too_long"}
    assert np.isnan(found[1]).all()
    assert not np.isnan(found[2]).any()
    cut = client.embed(texts, truncate=True)
    assert cut.truncated == (False, True, False)
    assert not np.isnan(cut.vectors).any()


def test_a_query_that_is_too_long_is_not_a_document_s_error(client: Client) -> None:
    with raises(InflightError, "prompt_too_long", naming="query") as refused:
        client.rerank("leaves " * 600, ["tea", "milk"], truncate=True)
    assert "documents[" not in str(refused.value)


def test_a_text_that_becomes_nan_fails_alone(client: Client, alone: Any) -> None:
    with raises(InflightError, "text_not_computed", naming="2"):
        client.embed(["tea", "coffee", f"tea {NAN_WORD}"])
    lost = range(4, len(TEXTS), 7)
    texts = [f"{text} {NAN_WORD}" if place in lost else text for place, text in enumerate(TEXTS)]
    found = client.embed(texts, return_errors=True)
    assert {place: error.code for place, error in found.errors.items()} == dict.fromkeys(lost, "text_not_computed")
    assert np.isnan(found.vectors).any(axis=1).nonzero()[0].tolist() == list(lost)
    for place, expected in alone.items():
        np.testing.assert_allclose(found[place], expected[0], atol=1e-5)


def test_a_text_that_becomes_nan_spares_other_clients_texts_of_its_micro_batch(
    mixed_server: Server, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients send texts one by one, all at once and of the same length; one text in four becomes NaN."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    texts = [f"{TEXTS[5]} {word}" for word in ("^", NAN_WORD, "^", "^") * 25]
    counts = ("inflight_encoder_batch_texts_sum", "inflight_encoder_batch_texts_count")

    async def both() -> tuple[Any, list[Any]]:
        async with AsyncClient(addresses["grpc"]) as one, AsyncClient(addresses["gateway"]) as other:
            expected, _ = await asyncio.gather(one.embed(texts[0]), other.embed(texts[0]))
            calls = [each.embed([text], return_errors=True) for text in texts for each in (one, other)]
            return expected[0], await asyncio.gather(*calls)

    def run() -> bool:
        """Check all answers; return whether most texts shared a micro-batch, which a busy machine may prevent."""
        before = [page_of(mixed_server).value(name, "embedding") for name in counts]
        expected, answers = asyncio.run(both())
        for place, answer in enumerate(answers):
            if NAN_WORD in texts[place // 2]:
                assert {index: error.code for index, error in answer.errors.items()} == {0: "text_not_computed"}
            else:
                np.testing.assert_allclose(answer[0], expected, atol=1e-5)
        page = page_when(mixed_server, lambda page: page.value(counts[0], "embedding") - before[0] >= len(answers))
        return bool(page.value(counts[1], "embedding") - before[1] < len(answers) / 2)

    assert any(run() for _ in range(5)), "hardly a micro-batch had several texts"


def test_token_ids_and_dimensions_are_computed(client: Client) -> None:
    found = client.embed([[5, 6, 7], [5]], dimensions=8)
    assert found.vectors.shape == (2, 8)
    assert found.input_tokens == (3, 1)


def test_documents_and_classes_have_scores(client: Client) -> None:
    ranked = client.rerank("tea?", TEXTS, top_n=3)
    assert [document.score for document in ranked] == sorted(ranked.scores, reverse=True)[:3]
    classes = client.classify(TEXTS)
    assert len(classes) == 300
    for found in classes:
        assert found.scores[found.label] == found.score == max(found.scores.values())
        assert len(found.scores) == 3


def test_a_gateway_with_encoders_alone_is_healthy(
    scripted_encoders: EncoderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with running_gateway(scripted_encoders.grpc_address) as gateway, Client(gateway.url) as client:
        assert client.ready()
        assert {model.task for model in client.models()} == {"embed", "rerank", "classify", "transcribe", "text2text"}
        found = client.embed(["tea", "fail prompt_too_long", "nan"], return_errors=True)
        assert {index: error.code for index, error in found.errors.items()} == {
            1: "prompt_too_long",
            2: "text_not_computed",
        }
        assert np.array_equal(found[0], expected_vector("tea"))
        assert client.classify("tea")[0].scores.keys() == set(LABELS)
        with Client(gateway.url, model="embed") as named:
            assert named.ready()
            assert np.array_equal(named.embed("tea")[0], expected_vector("tea"))
            with raises(InflightError, "unsupported_deployment", naming="embed"):
                named.generate("tea")


def test_the_model_that_generates_text_is_still_the_only_one(client: Client) -> None:
    assert client.generate("tea", max_tokens=2).output_tokens == 2
    assert client.ready()

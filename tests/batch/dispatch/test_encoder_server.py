"""The pool against encoders on a real Triton: every task, errors of single texts, and the build of the model."""

from __future__ import annotations

import numpy as np
import pytest
from inflight_client import InflightError
from inflight_client.encodings import Classifications, Embeddings, Reranking

from inflight.batch.dispatch.triton_backend import TritonBackend
from inflight.batch.job.rows import ClassifyRequest, EmbedRequest, RerankRequest, RowAnswer, RowRequest
from inflight.batch.job.spec import EncodeSpec, RunOptions, Task
from tests.batch.scripted_backend import DispatchRun, ListFeed
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_encoder import LABELS, expected_vector


async def sent(server: EncoderServer, task: Task, *requests: RowRequest) -> list[RowAnswer | InflightError]:
    backend = TritonBackend(server.grpc_address, RunOptions(), task=task)
    try:
        assert await backend.ready()
        assert await backend.build()
        return list(await backend.send(requests, "one"))
    finally:
        await backend.close()


async def test_each_row_gets_its_own_texts(scripted_encoders: EncoderServer) -> None:
    requests = [EmbedRequest(("tea", "a cup")), EmbedRequest(("fail prompt_too_long",)), EmbedRequest(([1, 2, 3],))]
    two, error, ids = await sent(scripted_encoders, "embed", *requests)
    assert isinstance(two, Embeddings)
    assert isinstance(ids, Embeddings)
    assert isinstance(error, InflightError)
    assert np.array_equal(two.vectors, [expected_vector("tea"), expected_vector("a cup")])
    assert np.array_equal(ids.vectors, [expected_vector("1 2 3")])
    assert (two.input_tokens, error.code) == ((1, 2), "prompt_too_long")


async def test_options_of_rows_reach_the_model(scripted_encoders: EncoderServer) -> None:
    (embeddings,) = await sent(scripted_encoders, "embed", EmbedRequest(("tea",), "query", 4))
    assert isinstance(embeddings, Embeddings)
    assert np.array_equal(embeddings.vectors, [expected_vector("tea", "query", 4)])


async def test_classes_and_scores(scripted_encoders: EncoderServer) -> None:
    tea, cup = await sent(scripted_encoders, "classify", ClassifyRequest("tea"), ClassifyRequest("cup"))
    assert isinstance(tea, Classifications)
    assert isinstance(cup, Classifications)
    assert list(tea[0].scores) == list(LABELS)
    assert list(cup[0].scores.values()) == pytest.approx(expected_vector("cup")[: len(LABELS)].tolist())
    (ranked,) = await sent(scripted_encoders, "rerank", RerankRequest("tea", ("cup", "pot", "leaf")))
    assert isinstance(ranked, Reranking)
    assert list(ranked.scores) == [expected_vector(f"tea{document}")[0] for document in ("cup", "pot", "leaf")]


async def test_rows_are_embedded_through_failures(scripted_encoders: EncoderServer) -> None:
    texts = [f"text {n}" for n in range(300)]
    texts[7], texts[100], texts[200] = "request invalid_request", "fail prompt_too_long", "nan"
    texts[50] = "fail text_not_computed"
    encode = EncodeSpec(task="embed")
    backend = TritonBackend(scripted_encoders.grpc_address, RunOptions(), task="embed")
    run = await DispatchRun([backend], ListFeed(texts, request=lambda text: EmbedRequest((text,))), encode=encode).run()
    assert run.errors.keys() >= {7, 50, 100}
    assert run.errors[50] == "text_not_computed"
    assert len(run.answers) + len(run.errors) == 300
    assert len(run.answers) >= 296

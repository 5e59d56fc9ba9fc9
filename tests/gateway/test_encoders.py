"""Embeddings, reranking and classification: as OpenAI's, Cohere's, Jina's and vLLM's clients send and read them."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import openai
import pytest

from inflight.deploy.server.server import Server
from inflight.gateway.key_file import ApiKey, Quotas, add_key
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, chat, gauge, get, post
from tests.fixtures.waiting import wait_until
from tests.standins.scripted_encoders.server import DIMENSIONS, MAX_SEQ_LEN, scripted_encoders

EMBEDDER, RERANKER, CLASSIFIER = "tea-embedder", "tea-reranker", "tea-classifier"
LONG = "word " * MAX_SEQ_LEN


@pytest.fixture(scope="module")
def encoders() -> Iterator[str]:
    with scripted_encoders(embed=EMBEDDER, rerank=RERANKER, classify=CLASSIFIER) as address:
        yield address


@pytest.fixture(scope="module")
def front(encoders: str) -> Iterator[GatewayProcesses]:
    """A gateway in front of encoders alone."""
    with running_gateway(encoders) as running:
        yield running


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file: an encoder computes a text that names it as long as it is there."""
    path = tmp_path / "gate"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


def embed(gateway: GatewayProcesses, given: Any, **fields: Any) -> Answer:
    return post(gateway, "/v1/embeddings", {"model": EMBEDDER, "input": given, **fields})


def rerank(gateway: GatewayProcesses, documents: list[Any], path: str = "/v2/rerank", **fields: Any) -> Answer:
    return post(gateway, path, {"model": RERANKER, "query": "green tea", "documents": documents, **fields})


def test_openai_s_client_gets_the_same_vectors_in_every_form(front: GatewayProcesses) -> None:
    texts = ["green tea", "black tea", "milk"]
    with openai.OpenAI(base_url=front.url, api_key="none", max_retries=0) as client:
        usual = client.embeddings.create(model=EMBEDDER, input=texts)  # the client asks for base64
    with openai_client(front) as client:  # it checks what it reads, before it would decode base64
        floats = client.embeddings.create(model=EMBEDDER, input=texts, encoding_format="float")
        short = client.embeddings.create(model=EMBEDDER, input=texts, dimensions=3, encoding_format="float")
        prompted = client.embeddings.create(
            model=EMBEDDER, input=texts, encoding_format="float", extra_body={"input_type": "query"}
        )
    vectors = numpy.float32([each.embedding for each in floats.data])
    assert vectors.shape == (3, DIMENSIONS)
    assert len({tuple(vector) for vector in vectors}) == 3
    assert (numpy.float32([each.embedding for each in usual.data]) == vectors).all()
    assert [each.index for each in usual.data] == [0, 1, 2]
    (text,) = embed(front, texts[1], encoding_format="base64").json["data"]
    assert (numpy.frombuffer(base64.b64decode(text["embedding"]), "<f4") == vectors[1]).all()
    assert {len(each.embedding) for each in short.data} == {3}
    assert (numpy.float32([each.embedding for each in prompted.data]) != vectors).all()
    assert (floats.usage.prompt_tokens, floats.usage.total_tokens) == (11, 11)
    assert (floats.model, floats.object) == (EMBEDDER, "list")


def test_token_ids_are_texts_of_their_own(front: GatewayProcesses) -> None:
    with openai_client(front) as client:
        lists = client.embeddings.create(model=EMBEDDER, input=[[5, 6, 7], [8]], encoding_format="float")
        one = client.embeddings.create(model=EMBEDDER, input=[5, 6, 7], encoding_format="float")
    assert len(lists.data) == 2
    assert one.data[0].embedding == lists.data[0].embedding != lists.data[1].embedding


@pytest.mark.parametrize(("path", "version"), [("/v1/rerank", "1"), ("/v2/rerank", "2"), ("/rerank", "1")])
def test_documents_are_ranked_at_each_api_s_path(front: GatewayProcesses, path: str, version: str) -> None:
    documents = ["black coffee", {"text": "a green tea"}, "tea"]
    body = rerank(front, documents, path, top_n=2, return_documents=True).json
    assert [(each["index"], each["relevance_score"]) for each in body["results"]] == [(1, 1.0), (2, 0.5)]
    assert [each["document"]["text"] for each in body["results"]] == ["a green tea", "tea"]
    assert body["meta"]["api_version"]["version"] == version  # Cohere's
    assert body["meta"]["billed_units"] == {"search_units": 1}
    assert (body["model"], body["usage"]["total_tokens"]) == (RERANKER, 12)  # Jina's
    assert all("document" not in each for each in rerank(front, documents, path).json["results"])


def test_long_documents_are_cut_and_listed_unless_that_is_refused(front: GatewayProcesses) -> None:
    body = rerank(front, ["tea", LONG]).json
    assert [each["truncated"] for each in sorted(body["results"], key=lambda each: int(each["index"]))] == [False, True]
    assert "1" in body["meta"]["warnings"][0]
    assert rerank(front, ["tea", LONG], max_tokens_per_doc=MAX_SEQ_LEN).status == 200
    assert rerank(front, ["tea"], max_tokens_per_doc=4).error["param"] == "max_tokens_per_doc"
    refused = rerank(front, ["tea", LONG], truncate=False)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert "documents[1]" in refused.error["message"]


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
def test_texts_get_labels_as_vllm_has_them(front: GatewayProcesses, path: str) -> None:
    body = post(front, path, {"model": CLASSIFIER, "input": ["tea", "word " * (MAX_SEQ_LEN - 2)]}).json
    assert [(each["label"], each["num_classes"]) for each in body["data"]] == [("short", 2), ("long", 2)]
    assert body["data"][0]["probs"] == pytest.approx([1 - 1 / MAX_SEQ_LEN, 1 / MAX_SEQ_LEN])
    assert body["usage"]["prompt_tokens"] == 3 + MAX_SEQ_LEN


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("refused", 400, "invalid_text"),
        ("", 400, "empty_prompt"),
        (LONG, 400, "context_length_exceeded"),
        ("nan", 500, "answer_damaged"),
    ],
)
def test_a_text_that_fails_fails_the_request_or_alone_if_asked(
    front: GatewayProcesses, text: str, status: int, code: str
) -> None:
    whole = embed(front, ["tea", "milk", text])
    assert (whole.status, whole.error["code"]) == (status, code)
    if status == 400:
        assert "input[2]" in whole.error["message"]
        assert whole.error["param"] == "input"
    apart = embed(front, ["tea", "milk", text], return_errors=True)
    assert apart.status == 200
    good, other, bad = apart.json["data"]
    assert (len(good["embedding"]), len(other["embedding"]), bad["embedding"]) == (DIMENSIONS, DIMENSIONS, [])
    assert bad["error"]["code"] == code
    assert embed(front, text).status == status


def test_a_full_queue_is_429_with_the_time_to_come_back(front: GatewayProcesses) -> None:
    for answer in (embed(front, "busy"), embed(front, ["tea", "busy"], return_errors=True)):
        assert (answer.status, answer.error["code"]) == (429, "server_overloaded")
        assert int(answer.headers["retry-after"]) > 0


def test_ten_thousand_texts_are_answered_in_order(front: GatewayProcesses) -> None:
    texts = [f"tea {number}" for number in range(10_000)]
    body = embed(front, texts, dimensions=4).json
    assert [each["index"] for each in body["data"]] == list(range(10_000))
    for number in (0, 255, 256, 9_999):
        assert (
            body["data"][number]["embedding"] == embed(front, texts[number], dimensions=4).json["data"][0]["embedding"]
        )
    assert body["usage"]["total_tokens"] == 40_000


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"input": NaN}', b"[" * 100_000, b'{"input":"\xff"}', b"\0"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/rerank", "/classify"])
def test_a_body_that_is_no_request_is_refused(front: GatewayProcesses, path: str, body: bytes) -> None:
    answer = post(front, path, body)
    assert answer.status == 400
    assert answer.error["message"]


def test_a_body_over_the_limit_is_refused(front: GatewayProcesses) -> None:
    assert post(front, "/v1/embeddings", b'{"input":"' + b"x" * 2**24 + b'"}').status == 413


def test_encoders_alone_are_listed_with_their_tasks(front: GatewayProcesses) -> None:
    assert get(front, "/ready").status == 200
    models = {each["id"]: each for each in get(front, "/v1/models").json["data"]}
    assert {name: each["task"] for name, each in models.items()} == {
        EMBEDDER: "embed",
        RERANKER: "rerank",
        CLASSIFIER: "classify",
    }
    assert models[EMBEDDER]["dimensions"] == DIMENSIONS
    assert models[EMBEDDER]["max_model_len"] == MAX_SEQ_LEN
    assert get(front, f"/v1/models/{RERANKER}").json == models[RERANKER]
    with openai_client(front) as client:
        assert {each.id for each in client.models.list()} == set(models)


def test_the_only_model_for_a_task_needs_no_name(front: GatewayProcesses) -> None:
    assert post(front, "/v1/embeddings", {"input": "tea"}).json["model"] == EMBEDDER
    assert post(front, "/rerank", {"query": "tea", "documents": ["tea"]}).json["model"] == RERANKER


@pytest.mark.parametrize(
    ("model", "status", "code"), [(RERANKER, 400, "unsupported_parameter"), ("nothing", 404, "model_not_found")]
)
def test_a_model_of_another_task_is_refused_by_name(
    front: GatewayProcesses, model: str, status: int, code: str
) -> None:
    answer = embed(front, "tea", model=model)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, "model")
    assert model in answer.error["message"]
    assert EMBEDDER in answer.error["message"]
    answer = chat(front, model=model)
    assert (answer.status, answer.error["code"]) == (status, code)


def test_fields_without_effect_are_in_the_header(front: GatewayProcesses) -> None:
    assert embed(front, "tea", user="me").headers["x-inflight-no-effect"] == "user"


def test_texts_and_tokens_are_counted(front: GatewayProcesses) -> None:
    names = ("inflight_gateway_texts_total", "inflight_gateway_tokens_total")
    before = [gauge(front, name) for name in names]
    embed(front, ["green tea", "milk"])
    assert [gauge(front, name) for name in names] == [before[0] + 2, before[1] + 7]


def test_a_client_that_leaves_frees_its_places(front: GatewayProcesses, gate: Path) -> None:
    body = f'{{"model":"{CLASSIFIER}","input":["while={gate}"]}}'.encode()
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        head = f"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: gauge(front, "inflight_gateway_texts_in_flight") == 1)
    wait_until(lambda: gauge(front, "inflight_gateway_texts_in_flight") == 0)


def test_an_expired_deadline_is_504(front: GatewayProcesses, gate: Path) -> None:
    answer = post(front, "/classify", {"input": f"while={gate}"}, {"x-inflight-deadline-ms": "50"})
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")


def test_each_model_is_answered_by_its_server_and_a_flood_holds_up_no_other(
    encoders: str, hurried_server: Server, gate: Path
) -> None:
    """Five requests are more than one encoder may have in flight; conversations and other models have places."""
    with ExitStack() as stack:
        second = stack.enter_context(scripted_encoders(embed="second"))
        gateway = stack.enter_context(running_gateway(encoders, second, hurried_server))
        wait_until(lambda: len(get(gateway, "/v1/models").json["data"]) == 5)
        assert embed(gateway, "tea", model="second").json["model"] == "second"
        missing = post(gateway, "/v1/embeddings", {"input": "tea"})
        assert (missing.status, missing.error["param"]) == (400, "model")
        texts = [f"while={gate}", *["tea"] * 1023]
        pool = stack.enter_context(ThreadPoolExecutor(8))
        flood: list[Future[Answer]] = [pool.submit(embed, gateway, texts, model="second") for _ in range(4)]
        wait_until(lambda: gauge(gateway, "inflight_gateway_texts_in_flight") == 4096)
        refused = embed(gateway, texts, model="second")
        assert (refused.status, refused.error["code"]) == (429, "server_overloaded")
        assert int(refused.headers["retry-after"]) > 0
        assert chat(gateway).json["model"] == MODEL
        assert rerank(gateway, ["tea"]).json["model"] == RERANKER
        assert embed(gateway, "tea").json["model"] == EMBEDDER
        gate.unlink()
        assert {each.result().status for each in flood} == {200}


def test_keys_limit_models_and_input_tokens_count(encoders: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    limited = ApiKey.new("app", tenant="shop", models=(EMBEDDER,), quotas=Quotas(tokens_per_minute=20))
    token = add_key(path, limited)
    with running_gateway(encoders, key_file=str(path)) as gateway, openai_client(gateway, api_key=token) as client:
        assert [each.id for each in client.models.list()] == [EMBEDDER]
        with pytest.raises(openai.AuthenticationError):
            openai_client(gateway).embeddings.create(model=EMBEDDER, encoding_format="float", input="tea")
        body = {"model": RERANKER, "query": "tea", "documents": ["tea"]}
        assert post(gateway, "/v2/rerank", body, {"authorization": f"Bearer {token}"}).status == 403
        raw = client.embeddings.with_raw_response.create(
            model=EMBEDDER, encoding_format="float", input=["one two three", "four"]
        )
        assert raw.headers["x-ratelimit-limit-tokens"] == "20"
        client.embeddings.create(
            model=EMBEDDER, encoding_format="float", input=["a b c d e"]
        )  # 8 tokens before it, 7 of its own
        with pytest.raises(openai.RateLimitError):
            client.embeddings.create(model=EMBEDDER, encoding_format="float", input=["twenty letters or so"])

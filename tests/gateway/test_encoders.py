"""Embeddings, reranking, classification and translation: as other projects' clients and ours send and read them."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import openai
import pytest
from inflight_client import Client, InflightError
from inflight_client.encoder_call import Task

from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.processes import GatewayProcesses
from tests.client.support.encoder_server import MAX_SEQ_LEN, encoder_server
from tests.client.support.scripted_encoder import DIMENSIONS, LABELS, expected_translation, expected_vector
from tests.fixtures.errors import raises
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, chat, gauge, get, post
from tests.fixtures.waiting import wait_until

EMBEDDER, RERANKER, CLASSIFIER, TRANSLATOR = "tea-embedder", "tea-reranker", "tea-classifier", "tea-translator"
QUERY = "What is tea?"
NAMES: dict[Task, str] = {"embed": EMBEDDER, "rerank": RERANKER, "classify": CLASSIFIER, "text2text": TRANSLATOR}


@pytest.fixture(scope="module")
def encoders() -> Iterator[str]:
    with encoder_server(NAMES) as server:
        yield server.grpc_address


@pytest.fixture(scope="module")
def front(encoders: str) -> Iterator[GatewayProcesses]:
    """A gateway in front of scripted encoders alone."""
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
    return post(gateway, path, {"model": RERANKER, "query": QUERY, "documents": documents, **fields})


def test_openai_s_client_gets_the_same_vectors_in_every_form(front: GatewayProcesses) -> None:
    texts = ["green tea", "black tea", "milk"]
    with openai.OpenAI(base_url=front.url, api_key="none", max_retries=0) as client:
        usual = client.embeddings.create(model=EMBEDDER, input=texts)  # the client asks for base64
    with openai_client(front) as client:  # it checks what it reads, before it would decode base64
        floats = client.embeddings.create(model=EMBEDDER, input=texts, encoding_format="float")
        other = client.embeddings.create(
            model=EMBEDDER, input=texts, encoding_format="float", dimensions=3, extra_body={"input_type": "query"}
        )
    (text,) = embed(front, texts[1], encoding_format="base64").json["data"]
    for found in (usual, floats):
        assert (_float32([each.embedding for each in found.data]) == list(map(expected_vector, texts))).all()
    assert (numpy.frombuffer(base64.b64decode(text["embedding"]), "<f4") == expected_vector(texts[1])).all()
    short = [expected_vector(each, "query", 3) for each in texts]
    assert (_float32([each.embedding for each in other.data]) == short).all()
    assert [each.index for each in floats.data] == [0, 1, 2]
    assert (floats.usage.prompt_tokens, floats.usage.total_tokens) == (5, 5)
    assert (floats.model, floats.object) == (EMBEDDER, "list")


def test_token_ids_are_texts_of_their_own(front: GatewayProcesses) -> None:
    with openai_client(front) as client:
        lists = client.embeddings.create(model=EMBEDDER, input=[[5, 6, 7], [8]], encoding_format="float")
        one = client.embeddings.create(model=EMBEDDER, input=[5, 6, 7], encoding_format="float")
    assert (_float32([each.embedding for each in lists.data]) == list(map(expected_vector, ["5 6 7", "8"]))).all()
    assert [each.embedding for each in one.data] == [lists.data[0].embedding]


@pytest.mark.parametrize(("path", "version"), [("/v1/rerank", "1"), ("/v2/rerank", "2"), ("/rerank", "1")])
def test_documents_are_ranked_at_each_api_s_path(front: GatewayProcesses, path: str, version: str) -> None:
    texts = ["black coffee", "a green tea", "milk", "cut!"]
    scores = [float(expected_vector(QUERY + text)[0]) for text in texts]
    best = sorted(range(4), key=lambda index: -scores[index])
    sent = [{"text": texts[0], "url": "x"}, *texts[1:]]
    body = rerank(front, sent, path, top_n=4, return_documents=True).json
    assert [each["document"] for each in body["results"] if each["index"] == 0] == sent[:1]
    body = rerank(front, sent, path, top_n=3, return_documents=True).json
    assert [each["index"] for each in body["results"]] == best[:3]
    assert [each["relevance_score"] for each in body["results"]] == [scores[index] for index in best[:3]]
    assert [each["document"]["text"] for each in body["results"]] == [texts[index] for index in best[:3]]
    assert body["meta"]["api_version"]["version"] == version  # Cohere's
    assert body["meta"]["billed_units"] == {"search_units": 1}
    assert str(3) in body["meta"]["warnings"][0]
    assert (body["model"], body["usage"]["total_tokens"]) == (RERANKER, 7)  # Jina's
    assert rerank(front, ["tea"] * 101, path).json["meta"]["billed_units"] == {"search_units": 2}
    whole = rerank(front, texts, path).json["results"]
    assert [each["index"] for each in whole] == best
    assert all("document" not in each for each in whole)


def test_documents_are_cut_only_where_the_model_s_limit_allows_it(front: GatewayProcesses) -> None:
    assert rerank(front, ["tea"], max_tokens_per_doc=MAX_SEQ_LEN).status == 200
    refused = rerank(front, ["tea"], max_tokens_per_doc=4)
    assert (refused.status, refused.error["param"]) == (400, "max_tokens_per_doc")


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
def test_texts_get_labels_as_vllm_has_them(front: GatewayProcesses, path: str) -> None:
    texts = ["green tea", "milk"]
    body = post(front, path, {"model": CLASSIFIER, "input": texts}).json
    for each, text in zip(body["data"], texts, strict=True):
        scores = expected_vector(text)[: len(LABELS)]
        assert each["probs"] == scores.tolist()
        assert (each["label"], each["num_classes"]) == (LABELS[int(scores.argmax())], len(LABELS))
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert (body["object"], body["labels"], body["id"].startswith("classify-")) == ("list", list(LABELS), True)
    assert abs(body["created"] - time.time()) < 60


def test_texts_are_translated_for_any_client_and_for_ours(front: GatewayProcesses) -> None:
    texts = ["green tea", "milk"]
    body = post(front, "/v1/translate", {"input": texts, "target_language": "de", "source_language": "en"}).json
    wanted = [expected_translation(text, target_prefix="de", source_language="en") for text in texts]
    assert [each["text"] for each in body["data"]] == wanted
    written = [each["num_output_tokens"] for each in body["data"]]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": sum(written), "total_tokens": 3 + sum(written)}
    with Client(front.url) as client:
        many = [f"text {number}" for number in range(300)]
        found = client.translate(many, length_penalty=0.5)
        assert list(found) == [expected_translation(text, length_penalty=0.5) for text in many]
        assert (found.output_tokens[0], found.model) == (3, TRANSLATOR)
        partly = client.translate(["tea", "fail prompt_too_long"], return_errors=True)
        assert (partly[0], partly[1], partly.errors[1].code) == ("TEA", "", "prompt_too_long")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": [[1, 2]]}, "input"),
        ({"input": "tea", "beam_width": 33}, "beam_width"),
        ({"input": "tea", "length_penalty": "long"}, "length_penalty"),
        ({"input": "tea", "target_language": 5}, "target_language"),
        ({"input": "tea", "source_language": ""}, "source_language"),
        ({"input": "tea", "target": "de"}, "target"),
    ],
)
def test_a_bad_field_of_a_translation_is_named(front: GatewayProcesses, fields: dict[str, Any], param: str) -> None:
    refused = post(front, "/v1/translate", fields)
    assert (refused.status, refused.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("fail invalid_text", 400, "invalid_text"),
        ("fail prompt_too_long", 400, "context_length_exceeded"),
        ("nan", 422, "text_not_computed"),
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
    ranked = rerank(front, ["tea", text])
    assert (ranked.status, ranked.error["code"]) == (status, code)


def test_an_exception_of_the_model_s_code_is_500_without_its_traceback(front: GatewayProcesses) -> None:
    for answer in (embed(front, "raise"), rerank(front, ["tea", "raise"])):
        assert (answer.status, answer.error["code"]) == (500, "model_failed")
        assert "model.py" not in answer.error["message"]


def test_a_full_queue_is_429_with_the_time_to_come_back(front: GatewayProcesses) -> None:
    busy = "request overloaded"
    for answer in (embed(front, busy), embed(front, ["tea", busy], return_errors=True), rerank(front, [busy])):
        assert (answer.status, answer.error["code"]) == (429, "server_overloaded")
        assert int(answer.headers["retry-after"]) > 0


def test_ten_thousand_texts_are_answered_in_order(front: GatewayProcesses) -> None:
    texts = [f"tea {number}" for number in range(10_000)]
    body = embed(front, texts, dimensions=4).json
    assert [each["index"] for each in body["data"]] == list(range(10_000))
    vectors = _float32([each["embedding"] for each in body["data"]])
    assert (vectors == [expected_vector(text, size=4) for text in texts]).all()
    assert body["usage"]["total_tokens"] == 20_000


def test_encoders_alone_are_listed_with_their_tasks(front: GatewayProcesses) -> None:
    assert get(front, "/ready").status == 200
    models = {each["id"]: each for each in get(front, "/v1/models").json["data"]}
    assert {name: each["task"] for name, each in models.items()} == {
        EMBEDDER: "embed",
        RERANKER: "rerank",
        CLASSIFIER: "classify",
        TRANSLATOR: "text2text",
    }
    assert models[EMBEDDER]["dimensions"] == DIMENSIONS
    assert models[EMBEDDER]["max_model_len"] == MAX_SEQ_LEN
    assert get(front, f"/v1/models/{RERANKER}").json == models[RERANKER]
    with openai_client(front) as client:
        assert {each.id for each in client.models.list()} == set(models)


@pytest.mark.parametrize("direct", [True, False])
def test_a_client_that_wants_text_is_told_what_the_server_does(
    front: GatewayProcesses, encoders: str, direct: bool
) -> None:
    what = ("embed", "rerank", "classify")
    with (
        Client(encoders if direct else front.url) as client,
        raises(InflightError, "unsupported_deployment", naming=what),
    ):
        client.deployment()


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


def test_texts_and_tokens_are_counted(encoders: str) -> None:
    names = ("inflight_gateway_texts_total", "inflight_gateway_tokens_total")
    with running_gateway(encoders) as gateway:  # another test's request may be counted long after its response
        embed(gateway, ["green tea", "milk"])
        wait_until(lambda: [gauge(gateway, name) for name in names] == [2, 3])


def test_a_client_that_leaves_frees_its_places(front: GatewayProcesses, gate: Path) -> None:
    body = f'{{"model":"{CLASSIFIER}","input":["hold {gate}"]}}'.encode()
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        head = f"POST /classify HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: gauge(front, "inflight_gateway_texts_in_flight") == 1)
    wait_until(lambda: gauge(front, "inflight_gateway_texts_in_flight") == 0)


def test_an_expired_deadline_is_504(front: GatewayProcesses, gate: Path) -> None:
    answer = post(front, "/classify", {"input": f"hold {gate}"}, {"x-inflight-deadline-ms": "50"})
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")


def test_each_model_is_answered_by_its_server_and_a_flood_holds_up_no_other(
    encoders: str, hurried_server: Server, gate: Path
) -> None:
    """Five requests are more than one encoder may have in flight; conversations and other models have places."""
    with ExitStack() as stack:
        second = stack.enter_context(encoder_server({"embed": "second"}))
        gateway = stack.enter_context(running_gateway(encoders, second.grpc_address, hurried_server, max_waiting=0))
        wait_until(lambda: len(get(gateway, "/v1/models").json["data"]) == 6)
        assert embed(gateway, "tea", model="second").json["model"] == "second"
        missing = post(gateway, "/v1/embeddings", {"input": "tea"})
        assert (missing.status, missing.error["param"]) == (400, "model")
        texts = [f"hold {gate}", *["tea"] * 1023]
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
    limited = ApiKey.new("app", tenant="shop", models=(EMBEDDER,), quotas=Quotas(tokens_per_minute=40))
    token = add_key(path, limited)
    roomy = add_key(path, ApiKey.new("long", quotas=Quotas(tokens_per_minute=MAX_SEQ_LEN + 10)))
    with running_gateway(encoders, key_file=str(path)) as gateway, openai_client(gateway, api_key=token) as client:
        assert [each.id for each in client.models.list()] == [EMBEDDER]
        with openai_client(gateway) as other, pytest.raises(openai.AuthenticationError):
            other.embeddings.create(model=EMBEDDER, input="tea")
        body = {"model": RERANKER, "query": "tea", "documents": ["tea"]}
        assert post(gateway, "/v2/rerank", body, {"authorization": f"Bearer {token}"}).status == 403
        ask = partial(client.embeddings.with_raw_response.create, model=EMBEDDER, encoding_format="float")
        assert ask(input=["one two three", "four"]).headers["x-ratelimit-limit-tokens"] == "40"
        with pytest.raises(openai.BadRequestError):  # the texts before the refused one were computed, and count
            ask(input=["word " * 15, "fail prompt_too_long"])
        with pytest.raises(openai.RateLimitError):
            ask(input="word " * 18)
        # Of a long text, no more than the model's limit is computed.
        sent = partial(post, gateway, "/v2/rerank", headers={"authorization": f"Bearer {roomy}"})
        bodies = [{"query": "tea", "documents": ["x" * 100_000] * count} for count in (2, 1)]
        assert [sent(body).status for body in bodies] == [429, 200]


def test_a_batch_of_embeddings_uses_the_servers_that_have_the_model(encoders: str, hurried_server: Server) -> None:
    texts = {f"row-{number}": [f"tea {number}", "milk"][: 1 + number % 2] for number in range(40)}
    bodies = {name: {"model": EMBEDDER, "input": given, "dimensions": 4} for name, given in texts.items()}
    bodies["bad"] = {"model": EMBEDDER, "input": ["milk", "fail invalid_text"]}
    line = {"method": "POST", "url": "/v1/embeddings"}
    content = b"".join(
        json.dumps(line | {"custom_id": name, "body": each}).encode() + b"\n" for name, each in bodies.items()
    )
    with running_gateway(hurried_server, encoders) as gateway, openai_client(gateway) as client:
        wait_until(lambda: len(get(gateway, "/v1/models").json["data"]) == 5)
        file = client.files.create(file=("rows.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        wait_until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"))
        batch = client.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 40, 1)
        answers = {each["custom_id"]: each["response"]["body"] for each in _lines(client, batch.output_file_id)}
        (error,) = _lines(client, batch.error_file_id)
    assert answers.keys() == texts.keys()
    for name, given in texts.items():
        found = openai.types.CreateEmbeddingResponse.model_validate(answers[name])
        vectors = [expected_vector(text, size=4) for text in given]
        assert (_float32([each.embedding for each in found.data]) == vectors).all()
    assert (error["custom_id"], error["response"]["body"]["error"]["code"]) == ("bad", "invalid_text")


def _lines(client: openai.OpenAI, file_id: str | None) -> list[Any]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).content.splitlines()]


def _float32(rows: Any) -> Any:
    return numpy.array(rows, numpy.float32)

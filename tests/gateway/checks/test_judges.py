"""Checks that judge whole texts: hooks, and a served classifier, also for /v1/moderations and the rows of batches."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from inflight.cli import main
from inflight.deploy.server.server import Server
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.key_ring import Caller
from inflight.gateway.processes import GatewayProcesses
from inflight.openai_api.errors import ApiError
from tests.client.support.encoder_server import encoder_server
from tests.client.support.scripted_encoder import expected_vector
from tests.fixtures.errors import raises
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, chat, complete, gauge, get, post
from tests.fixtures.ports import free_port
from tests.fixtures.waiting import wait_until
from tests.gateway.checks.scripted import MODEL as TEA
from tests.gateway.checks.scripted import TOOLS, ScriptedGateway, read
from tests.standins.openai_servers.server import openai_server

CHAT = {"messages": [{"role": "user", "content": "tea?"}]}
PIECES = ("A cup ", "of hemlock", " tea")
Verdict = Callable[[dict[str, Any]], Any]


@contextmanager
def hook(verdict: Verdict) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its URL, and what it gets. `verdict` returns its answer: a value for JSON, bytes, or a status."""
    got: list[dict[str, Any]] = []
    silent = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            answer = verdict(got[-1])
            if answer is None:
                silent.wait()
            status, body = (answer, b"{}") if isinstance(answer, int) else (200, answer)
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/check", got
    finally:
        silent.set()
        server.shutdown()
        server.server_close()
        thread.join()


def ask(
    folder: Path, url: str, pieces: Sequence[str] = PIECES, stream: bool = False, **check: Any
) -> tuple[dict[str, Any], Any]:
    """What an application reads, and what the checks have done."""
    spec = {"kind": "hook", "url": url, "on_error": "closed", "timeout": 30, **check}
    gateway = ScriptedGateway(folder, [spec])

    async def run() -> str:
        try:
            return await asyncio.wait_for(gateway.post("/v1/chat/completions", CHAT | {"stream": stream}, pieces), 60)
        finally:
            await gateway.handlers.close()

    answer = read(asyncio.run(run()))
    assert gateway.request is not None
    return answer, gateway.request.outcome.checks


def no_hemlock(body: dict[str, Any]) -> Any:
    texts = [text.replace("hemlock", "mint") for text in body["texts"]]
    return {"flagged": texts != body["texts"], "texts": texts}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("action", "text", "finish"),
    [("block", "", "content_filter"), ("redact", "A cup of mint tea", "stop"), ("flag", "".join(PIECES), "stop")],
)
def test_a_hook_judges_the_whole_answer_before_any_of_it_is_sent(
    tmp_path: Path, action: str, text: str, finish: str, stream: bool
) -> None:
    with hook(no_hemlock) as (url, got):
        answer, done = ask(tmp_path, url, stream=stream, at="after", action=action)
        assert ask(tmp_path, url, ("A cup", " of tea"), at="after", action=action)[0]["text"] == "A cup of tea"
    assert (answer["text"], answer["finish"], done) == (text, finish, [f"hook={action}"])
    assert got[0] == {"at": "after", "model": TEA, "texts": ["".join(PIECES)]}


def test_a_hook_changes_the_reasoning_and_the_calls_of_an_answer_alike(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "brew", "arguments": {"a": "hemlock"}}\n</tool_call>'
    with hook(no_hemlock) as (url, _):
        gateway = ScriptedGateway(tmp_path, [{"kind": "hook", "url": url, "on_error": "open", "action": "redact"}])
        body = CHAT | {"tools": TOOLS, "stream": True}
        pieces = ["<think>hem", "lock</think>", call]
        answer = read(asyncio.run(gateway.post("/v1/chat/completions", body, pieces)))
    assert (answer["reasoning"], answer["arguments"]) == ("mint", '{"a": "mint"}')
    assert answer["finish"] == "tool_calls"


def test_a_hook_changes_or_blocks_a_request(tmp_path: Path) -> None:
    def no_tea(body: dict[str, Any]) -> Any:
        return {"flagged": True, "texts": ["coffee?" for _ in body["texts"]]}

    with hook(no_tea) as (url, _):
        check = {"kind": "hook", "url": url, "on_error": "open", "action": "redact", "at": "before"}
        gateway = ScriptedGateway(tmp_path, [check])
        asyncio.run(gateway.post("/v1/chat/completions", CHAT, ["ok"]))
        assert gateway.prompts == [[{"role": "user", "content": "coffee?"}]]
        with raises(ApiError, "content_filter"):
            ask(tmp_path, url, at="before")


def test_a_request_that_quotas_refuse_is_not_judged(tmp_path: Path) -> None:
    caller = Caller(key=ApiKey.new("app", quotas=Quotas(requests_per_minute=1)))
    with hook(no_hemlock) as (url, got):
        gateway = ScriptedGateway(tmp_path, [{"kind": "hook", "url": url, "on_error": "closed", "at": "before"}])
        asyncio.run(gateway.post("/v1/chat/completions", CHAT, ["ok"], caller))
        with raises(ApiError, "rate_limit_exceeded"):
            asyncio.run(gateway.post("/v1/chat/completions", CHAT, ["ok"], caller))
    assert len(got) == 1


TROUBLES: dict[str, Verdict | None] = {
    "dead": None,
    "silent": lambda body: None,
    "status": lambda body: 500,
    "redirect": lambda body: 302,
    "garbage": lambda body: b"<html>",
    "list": lambda body: [],
    "no verdict": lambda body: {},
    "wrong verdict": lambda body: {"flagged": "no"},
    "too few texts": lambda body: {"flagged": False, "texts": []},
    "no texts": lambda body: {"flagged": False, "texts": 1},
    "no list": lambda body: {"flagged": True, "texts": {"a": 1}},
    "a text": lambda body: {"flagged": True, "texts": "a"},
    "huge": lambda body: b" " * 2**21 + b"{}",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_without_a_verdict_in_time_the_policy_decides(tmp_path: Path, trouble: str) -> None:
    verdict = TROUBLES[trouble]
    limit: dict[str, Any] = {"timeout": 0.3} if trouble == "silent" else {}
    with hook(verdict or (lambda body: None)) as (url, _):
        url = url if verdict else f"http://127.0.0.1:{free_port()}/"
        answer, done = ask(tmp_path, url, at="after", action="redact", **limit)
        assert (answer["text"], answer["finish"], done) == ("", "content_filter", ["hook=failed"])
        answer, done = ask(tmp_path, url, at="both", on_error="open", action="redact", **limit)
        assert (answer["text"], answer["finish"], done) == ("".join(PIECES), "stop", ["hook=failed"])
        with raises(ApiError, "check_unavailable", naming="hook") as refused:
            ask(tmp_path, url, at="before", **limit)
        assert refused.value.status == 503


def text_of(bad: bool) -> str:
    """A text whose probability of `bad` is high, or low."""
    texts = (f"tea {number}" for number in range(100))
    return next(text for text in texts if (expected_vector(text)[1] > 0.8 if bad else expected_vector(text)[1] < 0.5))


@pytest.fixture(scope="module")
def guarded(hurried_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcesses]:
    """A gateway whose requests a served classifier judges, and whose answers have no personal data."""
    path = tmp_path_factory.mktemp("routes") / "routes.yaml"
    judge = {"kind": "classifier", "model": "judge", "labels": ["bad"], "threshold": 0.8, "at": "before"}
    checks: list[dict[str, Any]] = [
        {**judge, "on_error": "closed", "timeout": 60, "models": [MODEL, "tea"]},
        {**judge, "on_error": "closed", "timeout": 0.2, "models": ["hasty"], "name": "hasty"},
        {"kind": "pii", "at": "after"},
        {"kind": "deny", "words": ["hemlock", "ck"], "at": "after"},
        {"kind": "deny", "name": "names", "words": ["Ada"], "at": "before", "action": "redact"},
    ]
    routes = {"hasty": {"targets": [{"model": MODEL}]}}
    path.write_text(json.dumps({"checks": checks, "routes": routes}))
    with ExitStack() as stack:
        encoders = stack.enter_context(encoder_server({"classify": "judge"}))
        other = stack.enter_context(openai_server("vllm", delay=0.001))
        servers = (hurried_server, encoders.grpc_address, other.address)
        gateway = stack.enter_context(running_gateway(*servers, routes=str(path)))
        wait_until(lambda: len(get(gateway, "/v1/models").json["data"]) == 4)  # with the route
        yield gateway


def test_a_served_classifier_judges_requests(guarded: GatewayProcesses, tmp_path: Path) -> None:
    assert chat(guarded, text_of(bad=False)).status == 200
    assert chat(guarded, text_of(bad=True)).error["code"] == "content_filter"
    assert chat(guarded, "x" * 600 + " fail invalid_text").status in (200, 400)  # pieces of it are texts of their own
    (gate := tmp_path / "gate").touch()
    assert chat(guarded, f"hold {gate}", model="hasty").error["code"] == "check_unavailable"
    gate.unlink()
    assert chat(guarded, "fail invalid_text").status == 503
    wait_until(lambda: gauge(guarded, "inflight_gateway_checks_total") >= 3)


def test_the_time_that_a_verdict_takes_is_part_of_the_deadline(guarded: GatewayProcesses, tmp_path: Path) -> None:
    gates = (tmp_path / str(number) for number in range(100))
    (gate := next(each for each in gates if expected_vector(f"hold {each}")[1] < 0.5)).touch()
    threading.Timer(0.2, gate.unlink).start()
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"hold {gate}"}], "max_tokens": 1}
    answer = post(guarded, "/v1/chat/completions", body, {"x-inflight-deadline-ms": "100"})
    assert answer.error["code"] == "deadline_exceeded"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/v1/responses", "input")],
)
def test_answers_of_other_servers_pass_the_same_checks(
    guarded: GatewayProcesses, path: str, field: str, stream: bool
) -> None:
    """This one repeats the last message, a word in each event."""
    for text, left, finish in (
        ("pay 4111 1111 1111 1111 now", "Answer to pay [card] now", "stop"),
        ("a hemlock leaf", "Answer to a ", "content_filter"),
    ):
        asked = [{"role": "user", "content": text}] if field == "messages" else text
        answer = post(guarded, path, {"model": "tea", field: asked, "stream": stream})
        got = read(answer.body.decode())
        assert (got["text"], got["finish"]) == (left, finish), answer.body


def test_likely_tokens_at_the_places_of_a_prompt_pass_the_checks_too(guarded: GatewayProcesses) -> None:
    """Of the fake engine's tokens `ck` is likely where `ea` stands."""
    answer = complete(guarded, text_of(bad=False), echo=True, logprobs=2, prompt_logprobs=2)
    (choice,) = answer.json["choices"]
    places = len(choice["prompt_logprobs"])
    for told in (choice["prompt_logprobs"], choice["logprobs"]["top_logprobs"][:places]):
        assert [len(each) for each in told[1:]] == [1] * (places - 1)


@pytest.mark.parametrize("given", [str, lambda text: [text, text]])
def test_moderations_are_those_of_the_classifier(guarded: GatewayProcesses, given: Callable[[str], Any]) -> None:
    only_good = next(
        text for text in map(str, range(1000)) if expected_vector(text)[0] > 0.8 > expected_vector(text)[1]
    )
    for text, bad in ((only_good, False), (text_of(bad=True), True)):
        answer = post(guarded, "/v1/moderations", {"input": given(text), "model": "judge"}).json
        for each in answer["results"]:
            assert each["flagged"] == bad == each["categories"]["bad"] == any(each["categories"].values())
            assert each["category_scores"]["bad"] == pytest.approx(expected_vector(text)[1])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "empty_prompt"),
        ({"input": [1]}, "invalid_value"),
        ({"input": "tea", "model": "none"}, "model_not_found"),
    ],
)
def test_a_wrong_moderation_is_refused(guarded: GatewayProcesses, body: Any, code: str) -> None:
    assert post(guarded, "/v1/moderations", body).error["code"] == code


def test_a_model_or_a_label_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asks = {"kind": "classifier", "at": "before", "on_error": "open"}
    path = tmp_path / "routes.yaml"
    with encoder_server({"classify": "judge", "embed": "embedder"}) as server:
        for model, label in (("judge", "worse"), ("nobody", "bad"), ("embedder", "bad"), ("judge", "bad")):
            path.write_text(json.dumps({"checks": [{**asks, "model": model, "labels": [label, "bad"]}]}))
            with pytest.raises(SystemExit) if (model, label) != ("judge", "bad") else nullcontext():
                main(["routes", "check", str(path), "--server", server.grpc_address])
            error = capsys.readouterr().err
            assert (model in error, label in error) == ((label != "bad" or model != "judge"), label == "worse"), error
        path.write_text(json.dumps({"checks": [{**asks, "model": "judge", "labels": ["worse"]}]}))
        with running_gateway(server.grpc_address, routes=str(path)) as gateway:
            answer = post(gateway, "/v1/moderations", {"input": "tea"})
            assert (answer.status, answer.error["code"]) == (503, "check_unavailable")


def test_rows_of_batches_pass_the_same_checks(guarded: GatewayProcesses) -> None:
    texts = {
        "ok": text_of(bad=False),
        "bad": text_of(bad=True),
        "pii": "my card is 4111 1111 1111 1111, is it?",
        "denied": "a hemlock leaf",
        "named": "Ada had tea",
    }
    body = {"model": MODEL, "max_tokens": 60, "n": 1}
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body | {"messages": [{"role": "user", "content": text}]} | ({"n": 2} if name == "pii" else {}),
        }
        for name, text in texts.items()
    ]
    content = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    with openai_client(guarded) as client:
        file = client.files.create(file=("rows.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        wait_until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"))
        batch = client.batches.retrieve(batch.id)
        assert batch.output_file_id
        assert batch.error_file_id
        found = [json.loads(line) for line in client.files.content(batch.output_file_id).content.splitlines()]
        answers = {each["custom_id"]: each["response"]["body"]["choices"] for each in found}
        (refused,) = map(json.loads, client.files.content(batch.error_file_id).content.splitlines())
    assert (refused["custom_id"], refused["response"]["body"]["error"]["code"]) == ("bad", "content_filter")
    assert len(answers["pii"]) == 2
    assert "1111 1111 1111" not in json.dumps(answers["pii"])
    assert all("[card]" in each["message"]["content"] for each in answers["pii"])
    assert [each["finish_reason"] for each in answers["denied"]] == ["content_filter"]
    assert "hemlock" not in json.dumps(answers["denied"])
    assert "Ada" not in json.dumps(answers["named"])
    for each in found:
        openai.types.chat.ChatCompletion.model_validate(each["response"]["body"])

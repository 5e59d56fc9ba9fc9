"""Routes: aliases with several targets, failover before the first byte, and servers of OpenAI's protocol as targets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import openai
import pytest
from inflight_client import InflightError

from inflight.cli import main
from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.routes_file import Route, read_routes
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, chat, complete, gauge, get, post
from tests.fixtures.voice import encoded, voice
from tests.fixtures.waiting import wait_until
from tests.standins.openai_servers.server import Fault, StandIn, openai_server


def write(path: Path, routes: dict[str, Any]) -> None:
    path.write_text(f"routes: {routes}".replace("None", "null").replace("True", "true"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("routes: {tea: {targets: [{model: a}], wieght: 1}}", "routes.tea.wieght"),
        ("routes: {tea: {targets: []}}", "routes.tea.targets"),
        ("routes: {tea: {}}", "routes.tea.targets"),
        ("routes: {tea: {targets: [{weight: 1}]}}", "routes.tea.targets.0"),
        ("routes: {tea: {targets: [{model: a, weight: -1}]}}", "routes.tea.targets.0.weight"),
        ("routes: {tea: {targets: [{model: a, weight: 0}, {model: b, weight: 0}]}}", "routes.tea"),
        ("routes: {tea: {targets: [{model: a}, {model: a}]}}", "routes.tea"),
        ("routes: {tea: {targets: [{server: 'ftp://x'}]}}", "ftp://x"),
        ("routes: {tea: {targets: [{server: 'openai+https://x/v1?key=UNSET_KEY'}]}}", "UNSET_KEY"),
        ("routes: {tea: {targets: [{model: a}], canary: {model: b, share: 2}}}", "routes.tea.canary.share"),
        ("routes: {tea: {targets: [{model: other}]}, other: {targets: [{model: tea}]}}", "other"),
        ("checks: [{kind: deny}]", "checks.0.deny"),
        ("checks: [{kind: deny, patterns: ['a+']}]", "patterns.0"),
        ("checks: [{kind: deny, words: [' ']}]", "checks.0.deny"),
        ("checks: [{kind: hook, url: 'http://x'}]", "checks.0.hook.on_error"),
        ("checks: [{kind: hook, url: 'file:///x', on_error: open}]", "file:///x"),
        ("checks: [{kind: size, max_characters: 1, action: redact}]", "checks.0.size.action"),
        ("checks: [{kind: pii}, {kind: pii}]", "pii"),
        ("checks: [{kind: none}]", "checks.0"),
        ("routes: [", "YAML"),
        ("nothing", "the file"),
    ],
)
def test_a_wrong_file_is_refused_by_what_is_wrong(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "routes.yaml").write_text(text)
    with pytest.raises(InflightError) as refused:
        read_routes(tmp_path / "routes.yaml")
    assert refused.value.code == "invalid_parameter"
    assert named in str(refused.value)


def test_requests_are_shared_by_weight_and_a_lost_target_moves_only_its_own() -> None:
    targets = [{"model": "a", "weight": 3}, {"model": "b"}, {"model": "spare", "weight": 0}]
    route = Route.model_validate({"targets": targets, "canary": {"model": "new", "share": 0.1}})
    orders = [[each.model for each in route.order(f"id-{number}")] for number in range(4000)]
    assert orders == [[each.model for each in route.order(f"id-{number}")] for number in range(4000)]
    shares = Counter(order[0] for order in orders)
    assert 320 < shares["new"] < 480
    assert 0.7 < shares["a"] / (shares["a"] + shares["b"]) < 0.8
    assert all(order[-1] == "spare" for order in orders)
    fewer = Route.model_validate({"targets": targets[:1] + targets[2:]})
    assert all(
        fewer.order(f"id-{number}")[0].model == "a"
        for number, order in enumerate(orders)
        if next(each for each in order if each != "new") == "a"
    )


@pytest.fixture(scope="module")
def backend() -> Iterator[StandIn]:
    with openai_server("vllm", delay=0.001) as running:
        yield running


@pytest.fixture(scope="module")
def routed(
    hurried_server: Server, backend: StandIn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcesses, Path]]:
    """In front of a server and a backend; `doomed` fails each request in several ways, `cut` after its first event."""
    path = tmp_path_factory.mktemp("routes") / "routes.yaml"
    faults = (Fault("status", 503), Fault("garbage"), Fault("status", 429, {"retry-after": "1"}))
    with ExitStack() as stack:
        doomed = stack.enter_context(openai_server("openai", ("doomed",), faults=faults * 100))
        cut = stack.enter_context(openai_server("vllm", ("cut",), faults=[Fault("cut")] * 100))
        unlucky = stack.enter_context(openai_server("vllm", ("bad",), faults=[Fault("garbage")] * 100))
        write(
            path,
            {
                "both": {"targets": [{"model": MODEL}, {"model": "tea", "weight": 0}]},
                "failing": {"targets": [{"server": doomed.address}, {"model": MODEL, "weight": 0}]},
                "cut": {"targets": [{"server": cut.address}, {"model": MODEL, "weight": 0}]},
                "shadowed": {"targets": [{"model": MODEL}], "shadow": {"model": "tea", "file": "shadow.jsonl"}},
                "unlucky": {
                    "targets": [{"model": MODEL}],
                    "shadow": {"server": unlucky.address, "file": "unlucky.jsonl"},
                },
                "lost": {"targets": [{"server": "openai+http://127.0.0.1:9/v1"}]},
            },
        )
        gateway = stack.enter_context(running_gateway(hurried_server, backend.address, routes=str(path)))
        wait_until(lambda: complete(gateway, model="tea").status == 200)
        wait_until(lambda: complete(gateway, model="failing").status == 200)
        yield gateway, path


def test_a_route_is_a_model_for_applications(routed: tuple[GatewayProcesses, Path]) -> None:
    gateway, _ = routed
    answer = chat(gateway, model="both")
    assert (answer.status, answer.json["model"], answer.headers["x-inflight-target"]) == (200, "both", f"{MODEL}#1")
    models = {each["id"]: each for each in get(gateway, "/v1/models").json["data"]}
    assert {"both", "failing", "tea", MODEL} <= models.keys()
    assert models["both"]["max_model_len"] == models[MODEL]["max_model_len"]
    assert post(gateway, "/tokenize", {"model": "both", "prompt": "tea"}).json["count"] > 0
    assert (complete(gateway, model="lost").status, complete(gateway, model="none").status) == (503, 404)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_before_its_first_byte_goes_to_the_next_target(
    routed: tuple[GatewayProcesses, Path], stream: bool
) -> None:
    gateway, _ = routed
    for _ in range(4):
        answer = chat(gateway, model="failing", stream=stream)
        assert (answer.status, answer.headers["x-inflight-target"]) == (200, f"{MODEL}#1")
        events = answer.events if stream else [answer.json]
        assert {each["model"] for each in events} == {"failing"}


def test_a_stream_that_has_begun_goes_nowhere_else(routed: tuple[GatewayProcesses, Path]) -> None:
    answers: list[Answer] = []

    def is_first() -> bool:
        answers.append(chat(routed[0], model="cut", stream=True))
        return answers[-1].headers["x-inflight-target"].startswith("cut")

    wait_until(is_first)
    assert answers[-1].events[-1]["error"]["type"] == "server_error"


def test_a_changed_file_is_taken_and_a_broken_one_is_not(routed: tuple[GatewayProcesses, Path]) -> None:
    gateway, path = routed
    before = path.read_text()
    path.write_text(before[:-1] + ", 'later': {'targets': [{'model': 'tea'}]}}")
    wait_until(lambda: complete(gateway, model="later").status == 200)
    path.write_text("routes: {")
    wait_until(lambda: path.stat().st_size < 20)
    assert complete(gateway, model="later").status == 200
    path.write_text(before)
    wait_until(lambda: complete(gateway, model="later").status == 404)


def test_openais_client_gets_what_a_backend_answers(routed: tuple[GatewayProcesses, Path], backend: StandIn) -> None:
    gateway, _ = routed
    messages: Any = [{"role": "user", "content": "green tea"}]
    with openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model="tea", messages=messages, n=2, top_logprobs=0, user="me")
        assert [each.message.content for each in whole.choices] == ["Answer to green tea"] * 2
        assert backend.requests[-1].body["n"] == 2
        assert "user" not in backend.requests[-1].body
        client.chat.completions.create(model="tea", messages=messages, service_tier="flex")
        assert "service_tier" not in backend.requests[-1].body
        assert (whole.id != "cmpl-1", whole.model, whole.usage and whole.usage.completion_tokens) == (True, "tea", 8)
        chunks = list(
            client.chat.completions.create(
                model="tea", messages=messages, stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(each.choices[0].delta.content or "" for each in chunks[:-1]) == "Answer to green tea"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4
        response = client.responses.create(model="tea", input="green tea")
        assert response.output_text == "Answer to green tea"
        assert response.usage is not None
        assert response.usage.output_tokens == 4
        assert len(client.embeddings.create(model="tea", input=["a", "b"]).data) == 2


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "seed": "no"}, "seed"),
        ("/v1/embeddings", {"input": "x", "input_type": "query"}, "input_type"),
        ("/v1/translate", {"input": "x"}, None),
    ],
)
def test_what_a_backend_can_not_do_is_refused_by_name(
    routed: tuple[GatewayProcesses, Path], path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = post(routed[0], path, {"model": "tea", **body})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_audio_is_not_passed_on(routed: tuple[GatewayProcesses, Path]) -> None:
    with (
        openai.OpenAI(base_url=routed[0].url, api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.audio.transcriptions.create(model="tea", file=("a.wav", encoded(voice(1))))
    assert caught.value.param == "model"


@pytest.mark.parametrize("stream", [False, True])
def test_a_shadow_keeps_both_answers(routed: tuple[GatewayProcesses, Path], stream: bool) -> None:
    gateway, path = routed
    file = path.parent / "shadow.jsonl"
    answer = chat(gateway, "green tea", model="shadowed", stream=stream, service_tier="flex")
    assert (answer.status, answer.headers["x-inflight-target"]) == (200, f"{MODEL}#1")
    request_id = answer.headers["x-request-id"]
    wait_until(lambda: file.exists() and request_id in file.read_text())
    row = next(each for each in map(json.loads, file.read_text().splitlines()) if each["custom_id"] == request_id)
    assert row["response"]["body"]["choices"][0]["message"]["content"] == "Answer to green tea"
    assert row["request"]["messages"][0]["content"] == "green tea"
    if stream:
        texts = [each["choices"][0]["delta"].get("content", "") for each in answer.events]
    else:
        texts = [answer.json["choices"][0]["message"]["content"]]
    assert row["primary"]["texts"] == ["".join(texts)]
    assert (file.stat().st_mode & 0o777, row["error"]) == (0o600, None)


def test_a_shadow_that_fails_is_a_row_with_an_error(routed: tuple[GatewayProcesses, Path]) -> None:
    gateway, path = routed
    assert chat(gateway, model="unlucky").status == 200
    file = path.parent / "unlucky.jsonl"
    wait_until(file.exists)
    wait_until(lambda: file.read_text().endswith("\n"))
    row = json.loads(file.read_text().splitlines()[0])
    assert (row["response"], row["error"]["type"], row["primary"]["target"]) == (None, "server_error", f"{MODEL}#1")


@pytest.mark.parametrize("all_there", [True, False])
def test_check_looks_for_the_targets(
    hurried_server: Server, backend: StandIn, tmp_path: Path, all_there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "routes.yaml", {"tea": {"targets": [{"model": MODEL, "weight": 3}, {"model": "tea"}]}})
    servers = (backend.address, *([hurried_server.grpc_address] if all_there else []))
    options = [part for each in servers for part in ("--server", each)]
    with nullcontext() if all_there else pytest.raises(SystemExit):
        main(["routes", "check", f"{tmp_path}/routes.yaml", *options])
    output = capsys.readouterr()
    assert f"tea: {MODEL} 75%, tea 25%" in output.out
    assert (f"{MODEL}, which no server has" in output.err) is not all_there


def test_a_client_that_leaves_ends_the_answer_of_a_backend(
    routed: tuple[GatewayProcesses, Path], backend: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "delay", 0.5)
    before = backend.left
    with openai.OpenAI(base_url=routed[0].url, api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "green tea " * 20}]
        stream = client.chat.completions.create(model="tea", messages=messages, stream=True)
        next(iter(stream))
        stream.close()
        wait_until(lambda: backend.left > before)
    wait_until(lambda: gauge(routed[0], "inflight_gateway_answers_in_flight") == 0)

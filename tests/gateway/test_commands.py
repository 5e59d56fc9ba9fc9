"""Our own commands through the gateway: the same as at Triton, chosen by the address."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inflight_client import Client, InflightError, Overloaded, Sampling
from inflight_client.retry import NO_RETRY
from inflight_client.sampling import Guide

from inflight import __version__
from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.errors import raises
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import MODEL, gauge
from tests.fixtures.waiting import wait_until

Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return lambda *words, **more: CommandRunner(monkeypatch, capsys, words[0])(*words[1:], **more)


@pytest.fixture
def client(gateway: GatewayProcesses, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Client(gateway.url) as found:
        yield found


@pytest.fixture
def triton(hurried_server: Server) -> Any:
    with Client(hurried_server.grpc_address) as found:
        yield found


MESSAGES = [{"role": "user", "content": "お茶 or coffee?"}]


@pytest.mark.parametrize("prompt", ["Tell me of お茶", MESSAGES], ids=["text", "messages"])
def test_answers_are_those_of_triton(client: Client, triton: Client, prompt: Any) -> None:
    expected = triton.generate(prompt, max_tokens=9)
    with client.stream(prompt, max_tokens=9) as stream:
        deltas = list(stream)
    assert stream.generation is not None
    for answer in (stream.generation, client.generate(prompt, max_tokens=9)):
        assert (answer.text, answer.finish_reason, answer.usage) == (expected.text, "length", expected.usage)
    assert all(delta.finish_reason is None and delta.text for delta in deltas[:-1])
    assert len(deltas) > 2


def test_sampling_and_log_probabilities_are_sent(client: Client, triton: Client) -> None:
    sampling = Sampling(
        temperature=0.7, top_k=5, top_p=0.9, seed=7, min_tokens=2, repetition_penalty=1.1, end_id=-1, stop=["zzz"]
    )
    options: Any = {"max_tokens": 6, "sampling": sampling, "return_log_probs": True}
    got, expected = client.generate("tea?", **options), triton.generate("tea?", **options)
    assert (got.text, len(got.log_probs or ())) == (expected.text, 6)
    assert got.log_probs == pytest.approx(expected.log_probs)
    assert got.cumulative_log_prob == pytest.approx(expected.cumulative_log_prob, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "code", "naming"),
    [
        ({"top_log_probs": 2}, "unsupported_input", "top_log_probs"),
        ({"sampling": Sampling(adapter=1)}, "unsupported_input", "adapter"),
        ({"sampling": Sampling(end_id=5)}, "unsupported_input", "end_id"),
        ({"sampling": Sampling(temperature=3)}, "invalid_parameter", "temperature"),
        ({"sampling": Sampling(guide=Guide("json_schema", "{"))}, "invalid_parameter", "schema"),
        ({"priority": 7}, "unsupported_input", "priority"),
        ({"tenant": "tea"}, "unsupported_input", "tenant"),
        ({"return_token_ids": True}, "unsupported_input", "return_token_ids"),
        ({"max_tokens": 10**6}, "prompt_too_long", "maximum context length"),
    ],
)
def test_what_cannot_be_sent_is_refused(client: Client, options: dict[str, Any], code: str, naming: str) -> None:
    with raises(InflightError, code, naming=naming):
        client.generate("tea?", **options)


def test_leaving_a_stream_ends_the_answer(gateway: GatewayProcesses, client: Client) -> None:
    with client.stream("tea?", max_tokens=1500) as stream:
        next(stream)
        wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 1)
    wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 0)


def test_the_commands_choose_the_gateway_by_the_address(gateway: GatewayProcesses, run: Run, triton: Client) -> None:
    raw = ("--raw", "--max-tokens", "6")
    expected = triton.generate("tell me of tea", max_tokens=6).text
    assert run("generate", "tell me of tea", *raw, "--server", gateway.url).out == expected + "\n"
    done = run("generate", "tell me of tea", *raw, "--json", "--log-probs", "--server", gateway.url)
    *deltas, end = done.objects
    assert "".join(delta["text"] for delta in deltas) == expected
    assert end["usage"]["output_tokens"] == 6
    talk = run("chat", "--json", "--max-tokens", "6", "--server", gateway.url, stdin=b"tea?\nand coffee?\n")
    assert [each["usage"]["output_tokens"] for each in talk.objects] == [6, 6]


def test_a_batch_job_may_ask_any_server_with_openai_s_api(
    gateway: GatewayProcesses, run: Run, triton: Client, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id,name\na,tea\nb,cake\n")
    options = {
        "--id": "id",
        "--out": str(tmp_path / "out.jsonl"),
        "--template": "Sell {{ name }}.",
        "--max-tokens": "5",
    }
    words = [word for pair in options.items() for word in pair]
    done = run("batch", "run", str(tmp_path / "rows.csv"), *words, "--raw", "--server", gateway.url)
    assert done.code == 0, done.err
    found = {each["id"]: each["text"] for each in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert found == {
        name: triton.generate(f"Sell {text}.", max_tokens=5).text for name, text in (("a", "tea"), ("b", "cake"))
    }


def test_an_unknown_model_is_named(gateway: GatewayProcesses, run: Run) -> None:
    done = run("generate", "tea?", "--model", "nothere", "--server", gateway.url)
    assert done.code == 1
    assert "[model_not_found]" in done.err
    assert MODEL in done.err


def test_the_key_comes_from_the_header_or_the_environment(
    hurried_server: Server, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.json", ApiKey.new("tests"))
    with running_gateway(hurried_server, key_file=str(tmp_path / "keys.json")) as gateway:
        words = ("generate", "tea?", "--max-tokens", "2", "--server", gateway.url)
        assert "[permission_denied]" in run(*words).err
        assert run(*words, "--header", f"Authorization: Bearer {key}").code == 0
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert run(*words).code == 0


def test_an_overloaded_gateway_says_when_to_come_back(hurried_server: Server) -> None:
    with (
        running_gateway(hurried_server, max_in_flight=1, max_waiting=0) as gateway,
        Client(gateway.url, retry=NO_RETRY) as client,
        client.stream("tea?", max_tokens=1500) as stream,
    ):
        next(stream)
        with raises(Overloaded, "overloaded") as refused:
            client.generate("tea?", max_tokens=2)
        assert refused.value.retry_after


def test_status_shows_what_the_gateway_serves(gateway: GatewayProcesses, run: Run, client: Client) -> None:
    with client.stream("tea?", max_tokens=1500) as stream:
        next(stream)
        done = run("status", "--json", "--server", gateway.url)
    wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 0)
    assert done.code == 0
    report = json.loads(done.out)
    assert report["health"] == {"live": True, "ready": True, "model_ready": True, "reason": ""}
    assert report["deployment"]["kind"] == "openai"
    assert report["deployment"]["version"] == __version__
    assert [(model["name"], model["state"]) for model in report["models"]] == [(MODEL, "READY")]
    assert report["load"]["running"] == 1
    assert report["failures"] == []
    assert "0 of 64 in flight" in run("status", "--server", gateway.url).out


def test_status_without_a_key_says_so(hurried_server: Server, run: Run, tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", ApiKey.new("tests"))
    with running_gateway(hurried_server, key_file=str(tmp_path / "keys.json")) as gateway:
        done = run("status", "--json", "--server", gateway.url)
    report = json.loads(done.out)
    assert done.code == 1
    assert report["health"]["ready"]
    assert "[permission_denied]" in report["failures"][-1]


@pytest.mark.parametrize("mode", ["stream", "unary"])
def test_a_load_test_counts_tokens_and_times(
    gateway: GatewayProcesses, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--input-tokens", "6", "--output-tokens", "4", "--users", "2", "--sessions", "6", "--seconds", "60")
    done = run("load", "run", *words, "--mode", mode, "--server", gateway.url, "--out", "found", "--json")
    assert done.code == 0, done.err
    records = [json.loads(line) for line in (tmp_path / "found" / "requests.jsonl").read_text().splitlines()]
    assert len(records) == 6
    for record in records:
        assert (record["outcome"], record["output_tokens"]) == ("completed", 4)
        assert len(record["chunks"]) == (4 if mode == "stream" else 0)
    metadata = json.loads((tmp_path / "found" / "metadata.json").read_text())
    assert metadata["served"] == {"model": MODEL, "chat_template": True}
    assert metadata["server_metrics_error"] == ""

"""`inflight generate` against a real server, whose engine says the prompt's tokens over and over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inflight_client import Client

from inflight.deploy.server.server import Server
from tests.client.support.gated_server import WAIT, AnswerGate
from tests.client.support.leak_checks import idle
from tests.client.support.scripted_server import serving
from tests.fixtures.command_runner import CommandRunner
from tests.serving.metrics_page import page_when

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "お茶 or coffee?"}]


@pytest.fixture(scope="module")
def client(paced_server: Server) -> Iterator[Client]:
    with Client(paced_server.grpc_address) as client:
        yield client


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_text_goes_to_stdout_and_the_summary_to_stderr(
    generate: CommandRunner, paced_server: Server, client: Client, protocol: str
) -> None:
    address = paced_server.grpc_address if protocol == "grpc" else f"http://{paced_server.http_address}"
    done = generate("--raw", "tell me of お茶", "--max-tokens", "12", "--top-k", "1", "--server", address)
    assert done.code == 0
    assert done.out == client.generate("tell me of お茶", max_tokens=12).text + "\n"
    assert done.err.startswith("[12 tokens in ")
    assert " tokens/s" in done.err
    assert done.err.endswith("ended by length]\n")


def test_json_is_one_object_a_delta_and_one_at_the_end(
    generate: CommandRunner, paced_server: Server, client: Client
) -> None:
    done = generate("--raw", "tell me of tea", "--max-tokens", "6", "--json", "--server", paced_server.grpc_address)
    *deltas, end = done.objects
    assert "".join(delta["text"] for delta in deltas) == client.generate("tell me of tea", max_tokens=6).text
    assert all(delta.keys() == {"text"} for delta in deltas)
    assert len(deltas) > 1
    assert end["finish_reason"] == "length"
    assert end["usage"]["output_tokens"] == 6
    assert 0 < end["timings"]["first_token"] < end["timings"]["total"]
    assert end["request_id"]
    assert "text" not in end


def test_no_stream_prints_one_answer(generate: CommandRunner, paced_server: Server, client: Client) -> None:
    asked = ("tell me of tea", "--raw", "--max-tokens", "4", "--no-stream", "--server", paced_server.grpc_address)
    text = client.generate("tell me of tea", max_tokens=4).text
    assert generate(*asked).out == text + "\n"
    (answer,) = generate(*asked, "--json").objects
    assert (answer["text"], answer["finish_reason"], answer["usage"]["output_tokens"]) == (text, "length", 4)
    assert answer["timings"]["attempts"] == 1


def test_a_prompt_is_a_users_message_unless_it_is_raw(
    generate: CommandRunner, paced_server: Server, client: Client
) -> None:
    asked = ("tell me of tea", "--max-tokens", "12", "--server", paced_server.grpc_address)
    message = [{"role": "user", "content": "tell me of tea"}]
    assert generate(*asked).out == client.generate(message, max_tokens=12).text + "\n"
    assert generate(*asked, "--raw").out == client.generate("tell me of tea", max_tokens=12).text + "\n"


def test_a_conversation_is_sent_as_messages(
    generate: CommandRunner, paced_server: Server, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(MESSAGES))
    asked = ("--max-tokens", "9", "--server", paced_server.grpc_address)
    text = client.generate(MESSAGES, max_tokens=9).text
    assert generate("--messages", str(path), *asked).out == text + "\n"
    assert generate("--messages", "-", *asked, stdin=path.read_bytes()).out == text + "\n"


def test_the_template_is_given_what_is_asked_for(generate: CommandRunner, paced_server: Server, client: Client) -> None:
    bare = client.generate(MESSAGES, max_tokens=1, chat_template_kwargs={"add_generation_prompt": False}).usage
    assert bare is not None
    asked = ("--messages", "-", "--max-tokens", "1", "--json", "--server", paced_server.grpc_address)
    given = [(), ("--chat-template-kwargs", '{"add_generation_prompt": false}')]
    whole, cut = (
        generate(*asked, *more, stdin=json.dumps(MESSAGES).encode()).objects[-1]["usage"]["input_tokens"]
        for more in given
    )
    assert cut == bare.input_tokens < whole


def test_what_is_asked_of_tokens_comes_with_them(generate: CommandRunner, paced_server: Server) -> None:
    done = generate(
        *("tell me of tea", "--max-tokens", "5", "--json", "--log-probs", "--token-ids"),
        *("--server", paced_server.grpc_address),
    )
    *deltas, _ = done.objects
    for name in ("log_probs", "token_ids"):
        assert sum(len(delta.get(name, ())) for delta in deltas) == 5


def test_the_answer_ends_before_a_stop_text(generate: CommandRunner, paced_server: Server, client: Client) -> None:
    whole = client.generate("tell me of tea", max_tokens=12).text
    stop = whole[5:9]
    done = generate(
        *("tell me of tea", "--raw", "--max-tokens", "12", "--stop", stop), "--server", paced_server.grpc_address
    )
    assert done.out == whole[: whole.index(stop)] + "\n"
    assert "ended by stop_word" in done.err


def test_a_dash_reads_the_prompt_from_stdin(generate: CommandRunner, paced_server: Server, client: Client) -> None:
    text = client.generate("お茶\nplease", max_tokens=5).text
    done = generate(
        "--raw", "-", "--max-tokens", "5", "--server", paced_server.grpc_address, stdin="お茶\nplease".encode()
    )
    assert done.out == text + "\n"


def test_what_came_before_a_deadline_stands_above_the_error(generate: CommandRunner, paced_server: Server) -> None:
    done = generate("--raw", "tell me", "--max-tokens", "1000", "--timeout", "2", "--server", paced_server.grpc_address)
    assert done.code == 1
    assert done.out
    assert done.err.startswith("Error: ")
    assert done.err.endswith("[deadline_exceeded]\n")


def test_the_first_token_has_a_deadline_of_its_own(generate: CommandRunner) -> None:
    with serving(AnswerGate()) as (_, address):
        done = generate("--raw", WAIT, "--first-token-timeout", "0.1", "--server", address)
    assert (done.code, done.out) == (1, "")
    assert "the first token did not arrive within 0.1 seconds" in done.err


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_nobody_at_the_address_is_one_sentence_at_once(generate: CommandRunner, scheme: str) -> None:
    done = generate("--raw", "tell me", "--server", f"{scheme}127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("[server_unreachable]\n")


def test_the_http_port_without_its_scheme_is_recognised(generate: CommandRunner, paced_server: Server) -> None:
    done = generate("--raw", "tell me", "--server", paced_server.http_address)
    assert done.code == 1
    assert f"http://{paced_server.http_address}" in done.err
    assert done.err.endswith("[connection_closed]\n")


def test_a_wrong_model_is_answered_with_those_that_are_there(generate: CommandRunner, paced_server: Server) -> None:
    done = generate("--raw", "tell me", "--model", "llama3", "--server", paced_server.grpc_address)
    assert done.code == 1
    assert "ensemble, tensorrt_llm_bls" in done.err
    assert done.err.endswith("[model_not_found]\n")


@pytest.mark.parametrize("stdin", [b"tea \xff", b"\xf0\x90"])
def test_a_prompt_that_is_no_utf_8_is_a_users_mistake(generate: CommandRunner, stdin: bytes) -> None:
    done = generate("--raw", "-", "--server", "127.0.0.1:1", stdin=stdin)
    assert done.code == 1
    assert done.err.startswith("Error: the prompt can't be encoded as UTF-8")
    assert done.err.endswith("[invalid_text]\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tell", "--temperature", "nan"], "temperature is nan"),
        (["tell", "--top-k", "-4"], "top_k is -4"),
        (["tell", "--max-tokens", "0"], "0 is not in the range"),
        (["tell", "--timeout", "0"], "0.0 is not in the range"),
        (["tell", "--traceparent", "mine"], "traceparent is 'mine'"),
        (["tell", "--header", "no colon"], "NAME: VALUE"),
        (["tell", "--ca", "/nowhere.pem"], "'/nowhere.pem' does not exist"),
        (["tell", "--chat-template-kwargs", "{}{"], "{}{ is not valid JSON"),
        (["tell", "--chat-template-kwargs", "[1]"], "[1] is not a JSON object"),
        (
            ["tell", "--chat-template-kwargs", '{"a": NaN}'],
            "chat_template_kwargs holds a number that JSON can't represent",
        ),
        (["tell", "--raw", "--chat-template-kwargs", '{"a": 1}'], "which --raw leaves out"),
        (["tell", "--messages", "talk.json"], "Give either PROMPT or --messages, not both"),
        (["--messages", "/nowhere.json"], "/nowhere.json: No such file"),
        ([], "Missing argument 'PROMPT'"),
    ],
)
def test_a_users_mistake_is_named_before_a_server_is_asked(
    generate: CommandRunner, arguments: list[str], words: str
) -> None:
    done = generate(*arguments, "--server", "127.0.0.1:1")
    assert done.code == 2
    assert words in done.err


def test_a_secret_without_a_name_is_not_repeated(generate: CommandRunner) -> None:
    assert "hunter2" not in generate("--raw", "tell", "--header", "hunter2").err


def test_headers_and_stop_texts_come_from_the_environment_one_a_line(
    generate: CommandRunner, paced_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = client.generate("tell me of tea", max_tokens=12).text
    monkeypatch.setenv("INFLIGHT_GENERATE_HEADER", "authorization: Bearer of news\nx-of: two words")
    monkeypatch.setenv("INFLIGHT_GENERATE_STOP", f"not there\n{whole[5:9]}")
    done = generate("--raw", "tell me of tea", "--max-tokens", "12", "--server", paced_server.grpc_address)
    assert done.out == whole[: whole.index(whole[5:9])] + "\n"


def test_ctrl_c_cancels_the_request(paced_server: Server) -> None:
    program = "from inflight.cli import main; main()"
    asked = ("generate", "tell", "--max-tokens", "2000", "--server", paced_server.grpc_address, "--json")
    command = [sys.executable, "-c", program, *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told.decode().strip()) == (130, "Interrupted.")
    page_when(paced_server, idle)

"""Streamed text: nothing lost, nothing mixed up, and soon."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from inflight.deploy.server.server import Server
from tests.serving.raw_requests import TIMEOUT, GrpcCall, GrpcConnection, generate, request

PROMPTS = [
    "The quick brown fox jumps over the lazy dog.",
    "抹茶ラテは京都の宇治から。熱いお茶をください。",
    "Tea 🍵, cake 🍰, a family 👩‍👩‍👧‍👦, a flag 🇯🇵, thumbs 👍🏽 and ❤️‍🔥",
    "  Straße,\n\tÅngström – café… 안녕하세요 नमस्ते שלום",
]
ATTEMPTS = 5
"""To see a first chunk come soon, on a machine that is busy now and then. Of a stream that is held back to its end, or
that makes its text at its end, all come late."""
FOUR = range(len(PROMPTS))


def tokenizer_of(server: Server) -> Tokenizer:
    return Tokenizer.from_file(str(server.engine / "tokenizer.json"))


def echo(server: Server, prompt: str, tokens: int) -> str:
    """What the fake engine's answer is as text: the prompt's tokens over and over, decoded all at once."""
    tokenizer = tokenizer_of(server)
    ids = tokenizer.encode(prompt).ids
    return str(tokenizer.decode([ids[number % len(ids)] for number in range(tokens)], skip_special_tokens=True))


def joined(call: GrpcCall) -> str:
    return "".join(response.text for response in call.finish())


@pytest.mark.parametrize("request_ids", [("same", "same", "", ""), ("a", "b", "c", "d")])
def test_interleaved_streams_are_whole_whatever_their_ids(paced_server: Server, request_ids: tuple[str, ...]) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        calls = [connection.text(PROMPTS[number], 90, request_ids[number]) for number in FOUR]
        texts = [joined(call) for call in calls]
    assert texts == [echo(paced_server, prompt, 90) for prompt in PROMPTS]
    for call in calls:
        assert [response.finish_reason for response in call.responses] == [None] * 89 + ["length"]
    assert "抹茶ラテ" in texts[1]
    assert "👩‍👩‍👧‍👦" in texts[2]
    begun, ended = max(call.responses[0].at for call in calls), min(call.responses[-1].at for call in calls)
    assert begun < ended, "the streams ran one after another"


def test_requests_of_one_grpc_stream_run_at_once_and_are_told_apart_by_their_ids(paced_server: Server) -> None:
    requests = [
        request("ensemble", {"text_input": PROMPTS[number], "max_tokens": 60, "stream": True}, str(number))
        for number in FOUR
    ]
    with GrpcConnection(paced_server.grpc_address) as connection:
        responses = connection.send(*requests).finish()
    ids = [response.request_id for response in responses]
    for number in FOUR:
        mine = [response for response in responses if response.request_id == str(number)]
        assert "".join(response.text for response in mine) == echo(paced_server, PROMPTS[number], 60)
        # All have begun before half of it has come, which is no matter of when it is read.
        assert ids.index(str(number)) < len(ids) / 2


def test_what_a_model_says_is_the_decoding_of_its_tokens(server: Server) -> None:
    """Random weights say anything, broken characters included."""
    tokenizer = tokenizer_of(server)
    with GrpcConnection(server.grpc_address) as connection:
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt).ids
            alone = connection.tokens(ids, 64, end_id=-1).finish()
            tokens = [token for response in alone for token in response.token_ids]
            assert joined(connection.text(prompt, 64, end_id=-1)) == tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["paced_server", "server"])
def test_the_whole_answer_is_the_streamed_one(serving: Callable[[str], Server], name: str) -> None:
    server = serving(name)
    with GrpcConnection(server.grpc_address) as connection:
        for prompt in PROMPTS:
            stream = connection.text(prompt, 20)
            text = joined(stream)
            (whole,) = connection.text(prompt, 20, stream=False, exclude_input_in_output=True).finish()
            status, answer = generate(
                server.http_address, {"text_input": prompt, "max_tokens": 20, "exclude_input_in_output": True}
            )
            last = stream.responses[-1]
            assert (whole.text, status, answer["text_output"]) == (text, 200, text)
            assert whole.finish_reason == answer["finish_reason"] == last.finish_reason
            for count in ("num_input_tokens", "num_output_tokens"):
                assert whole.count(count) == answer[count] == last.count(count)


def test_the_first_chunk_comes_soon_and_the_others_one_by_one(paced_server: Server) -> None:
    shares = []
    with GrpcConnection(paced_server.grpc_address) as connection:
        for number in range(ATTEMPTS):
            call = connection.text(f"{number} little foxes jump over the lazy dogs.", 80, end_id=-1)
            responses = call.finish(4 * TIMEOUT)
            # The fake engine says the prompt, where each token completes its characters.
            assert sum(bool(response.text) for response in responses) >= 0.9 * 80
            shares.append((responses[0].at - call.sent_at) / (responses[-1].at - call.sent_at))
            if shares[-1] < 0.1:
                return
    pytest.fail(f"the first chunks came after {shares} of the answers' time")

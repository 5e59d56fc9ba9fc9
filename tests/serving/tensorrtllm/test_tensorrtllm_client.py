"""Our client on a repository for TensorRT-LLM's C++ backend: a real Triton, and a stand-in for the backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inflight_client import Client, InflightError, Sampling

from inflight.deploy.server.server import Server
from tests.fixtures.errors import raises
from tests.serving.tensorrtllm.echo import ENDLESS, TEXTS, TOKENIZER, ids_of, thrice


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, cpp_server: Server) -> Iterator[Client]:
    address = cpp_server.grpc_address if request.param == "grpc" else f"http://{cpp_server.http_address}"
    with Client(address) as found:
        yield found


def test_answers_come_with_their_counts(client: Client) -> None:
    count, expected = thrice(TEXTS[0])
    whole = client.generate(TEXTS[0], max_tokens=count)
    stream = client.stream(TEXTS[0], max_tokens=count, timeout=60)
    assert len(list(stream)) > 1
    for found in (whole, stream.generation):
        assert found is not None
        assert (found.text, found.finish_reason) == (expected, "unknown")
        assert (found.input_tokens, found.output_tokens) == (count // 3, count)


def test_log_probs_are_those_of_each_step(client: Client) -> None:
    whole = client.generate(TEXTS[0], max_tokens=6, return_log_probs=True)
    stream = client.stream(TEXTS[0], max_tokens=6, return_log_probs=True)
    steps = [delta.log_probs for delta in stream]
    assert whole.log_probs is not None
    assert len(whole.log_probs) == 6
    assert [value for step in steps for value in step or ()] == list(whole.log_probs)
    assert stream.generation is not None
    assert stream.generation.cumulative_log_prob == whole.cumulative_log_prob == sum(whole.log_probs)


def test_an_answer_ends_before_its_stop_word(client: Client) -> None:
    sampling = Sampling(stop=(" two",))
    whole = client.generate(TEXTS[0], max_tokens=60, sampling=sampling)
    for found in (whole, client.stream(TEXTS[0], max_tokens=60, sampling=sampling).read()):
        assert (found.text, found.finish_reason) == ("the tea  and", "stop_word")


def test_a_request_is_cancelled_by_its_id(client: Client) -> None:
    stream = client.stream(TEXTS[0], max_tokens=ENDLESS, request_id="to be cancelled")
    first = next(delta.text for delta in stream if delta.text)
    client.cancel("to be cancelled")
    last = list(stream)[-1]
    assert last.finish_reason == "unknown"
    assert stream.text.startswith(first)
    assert len(stream.text) < len(TOKENIZER.decode(ids_of(TEXTS[0]))) * ENDLESS / len(ids_of(TEXTS[0]))


def test_messages_are_rendered_by_preprocessing(client: Client) -> None:
    rendered = "<|im_start|>user\nthe tea\n<|im_start|>assistant\n"
    expected = TOKENIZER.decode(ids_of(rendered))
    found = client.generate([{"role": "user", "content": "the tea"}], max_tokens=len(ids_of(rendered)))
    assert found.text == expected


def test_what_the_backend_does_not_know_is_refused_by_name(client: Client) -> None:
    with raises(InflightError, "unsupported_input", naming="priority"):
        client.generate(TEXTS[0], priority=1)

"""Every method x gRPC, HTTP x ordinary code, asyncio, against the real server: the right result or the right error.

After each of them nothing runs on the server, and no thread, task or socket is left here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from inflight_client import DeadlineExceeded, InflightError
from inflight_client.results import Generation

from inflight.deploy.server.server import Server
from tests.client.support.client_variants import CLIENT_VARIANTS, ClientVariant, SyncCaller, every_client
from tests.client.support.expected_answers import LATE_PROMPT, LONG, PROMPT, TOO_LONG, expected
from tests.client.support.leak_checks import nothing_left
from tests.fixtures.server import STEP_SECONDS
from tests.serving.metrics_page import page_when
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import StallAt

MARGIN = 20.0
"""Seconds by which a call may be later than its deadline on a machine that is busy and slow."""

Ask = Callable[[SyncCaller], object]


@pytest.fixture
def served(slow_server: Server) -> Iterator[Server]:
    """The server; behind the test nothing may be left."""
    with nothing_left(slow_server):
        yield slow_server


@contextmanager
def late_within(seconds: float) -> Iterator[None]:
    """What is done inside is refused for its deadline, and not much later."""
    began = time.monotonic()
    with pytest.raises(InflightError) as caught:
        yield
    assert (type(caught.value).__name__, caught.value.code) == ("DeadlineExceeded", "deadline_exceeded")
    assert time.monotonic() - began < seconds + MARGIN


def the_whole(caller: SyncCaller, prompt: str = PROMPT, **options: object) -> Generation:
    return caller.generate(prompt, **options)


def as_a_stream(caller: SyncCaller, prompt: str = PROMPT, **options: object) -> Generation:
    stream = caller.stream(prompt, **options)
    text = "".join(delta.text for delta in stream)
    assert stream.generation is not None
    assert stream.generation.text == text == stream.text
    return stream.generation


def one_of_many(caller: SyncCaller, prompt: str = PROMPT, **options: object) -> Generation:
    """The same prompt three times, two at a time."""
    answers = list(caller.generate_many([prompt] * 3, concurrency=2, **options))
    assert len({answer.text for answer in answers}) == 1
    generation: Generation = answers[-1]
    return generation


each_text_method = pytest.mark.parametrize("ask", [the_whole, as_a_stream, one_of_many])
Generating = Callable[..., Generation]


@every_client
@each_text_method
def test_an_answer_is_what_the_server_says(way: ClientVariant, served: Server, ask: Generating) -> None:
    with way.client(served) as caller:
        answer = ask(caller, max_tokens=7, tenant="tests", return_token_ids=True)
    assert answer.text == expected(served, 7)
    assert (answer.finish_reason, answer.output_tokens) == ("length", 7)
    assert answer.token_ids is not None
    assert (len(answer.token_ids), answer.timings.attempts) == (7, 1)
    assert 0 < answer.timings.first_token <= answer.timings.total


@every_client
def test_a_server_is_asked_how_it_stands(way: ClientVariant, served: Server) -> None:
    with way.client(served) as caller:
        health = caller.health()
        assert (health.live, health.ready, health.model_ready, health.reason) == (True, True, True, "")
        assert {"ensemble", "tensorrt_llm"} <= {model.name for model in caller.models() if model.ready}
        assert caller.metrics().value("nv_inference_pending_request_count", model="ensemble", version="1") is not None
        caller.cancel("nobody's")


@every_client
def test_models_are_listed_to_who_has_the_key(way: ClientVariant, served: Server) -> None:
    """What goes with every call are the client's headers: Triton lists its models only with them here."""
    name = "triton-grpc-protocol-inflight-admin-key" if way.protocol == "grpc" else "inflight-admin-key"
    with way.client(served, headers={name: served.instance.probe.admin_key}) as caller:
        assert {model.name for model in caller.models()} >= {"ensemble", "tensorrt_llm", "preprocessing"}


@every_client
@each_text_method
def test_a_request_is_cancelled_by_its_id(way: ClientVariant, served: Server, ask: Generating) -> None:
    def cancel() -> None:
        page_when(served, lambda page: page.requests["active"] >= (2 if ask is one_of_many else 1))
        with way.client(served) as another:
            while not over.wait(0.05):  # generate_many begins further ones with that id
                another.cancel("mine")

    over = threading.Event()
    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with way.client(served) as caller:
            answer = ask_loosely(ask, caller)
    finally:
        over.set()
        canceller.join()
    assert answer.finish_reason == "cancelled"
    assert (PROMPT * LONG).startswith(answer.text)  # as far as it came


def ask_loosely(ask: Generating, caller: SyncCaller) -> Generation:
    """Of many that are cancelled each may have said another part."""
    if ask is not one_of_many:
        return ask(caller, max_tokens=LONG, request_id="mine")
    answers = list(caller.generate_many([PROMPT] * 3, concurrency=2, max_tokens=LONG, request_id="mine"))
    assert {answer.finish_reason for answer in answers} == {"cancelled"}
    return answers[0]  # type: ignore[no-any-return]


@every_client
@each_text_method
def test_a_deadline_ends_what_takes_longer(way: ClientVariant, served: Server, ask: Generating) -> None:
    with way.client(served) as caller:
        caller.health()  # the way is there, so that the answer itself is what is late
        with late_within(0.25):
            ask(caller, max_tokens=LONG, timeout=0.25)
        assert the_whole(caller, max_tokens=3, timeout=60.0).text == expected(served, 3)


@every_client
@pytest.mark.parametrize("ask", [the_whole, as_a_stream, pytest.param(one_of_many, marks=pytest.mark.slow)])
def test_a_first_token_that_is_late_ends_the_call(way: ClientVariant, served: Server, ask: Generating) -> None:
    with way.client(served) as caller:
        caller.health()
        with late_within(0.2):
            ask(caller, LATE_PROMPT, max_tokens=3, first_token_timeout=0.2)
        assert the_whole(caller, max_tokens=10, first_token_timeout=30.0).output_tokens == 10


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=() if (way.protocol == "grpc") != way.aio else pytest.mark.slow)
        for way in CLIENT_VARIANTS
    ],
    ids=str,
)
def test_an_answer_may_last_longer_than_its_first_token(way: ClientVariant, served: Server) -> None:
    with way.client(served) as caller:
        caller.health()
        for patience in (0.7, 2.8, 11.2):  # a busy machine gets more time
            tokens = round(1.4 * patience / STEP_SECONDS)
            try:
                answer = the_whole(caller, max_tokens=tokens, first_token_timeout=patience)
                break
            except DeadlineExceeded:
                continue
    assert answer.text == expected(served, tokens)
    assert answer.timings.first_token < patience < answer.timings.total
    assert answer.token_ids is not None
    assert len(answer.token_ids) == answer.output_tokens == tokens


@every_client
@pytest.mark.parametrize("question", ["generate", "models", "metrics", "cancel", "health"])
def test_a_server_that_says_nothing_is_waited_for_no_longer_than_asked(
    way: ClientVariant, served: Server, question: str
) -> None:
    asks: dict[str, Ask] = {
        "generate": lambda caller: caller.generate(PROMPT, timeout=0.2),
        "models": lambda caller: caller.models(timeout=0.2),
        "metrics": lambda caller: caller.metrics(timeout=0.2),
        "cancel": lambda caller: caller.cancel("mine", timeout=0.2),
    }
    with FaultyNetwork(way.port(served), Faults((StallAt(),), (StallAt(),))) as network:
        metrics = f"http://{network.address}/metrics"
        with way.client_at(way.url(network.address), metrics_url=metrics) as caller:
            if question in asks:
                with late_within(0.2):
                    asks[question](caller)
                return
            began = time.monotonic()
            health = caller.health(timeout=0.2)
            assert time.monotonic() - began < 0.2 + MARGIN
            assert not health
            assert "0.2 seconds" in health.reason


@every_client
@each_text_method
def test_what_the_server_refuses_is_said_and_not_sent_again(
    way: ClientVariant, served: Server, ask: Generating
) -> None:
    with way.client(served) as caller, pytest.raises(InflightError) as caught:
        ask(caller, TOO_LONG, max_tokens=3, timeout=60.0)
    assert (type(caught.value).__name__, caught.value.code) == ("InvalidRequest", "prompt_too_long")


@every_client
@each_text_method
def test_a_model_that_is_not_there_is_no_matter_for_patience(
    way: ClientVariant, served: Server, ask: Generating
) -> None:
    began = time.monotonic()
    with way.client(served, model="nobody") as caller:
        with pytest.raises(InflightError) as caught:
            ask(caller, max_tokens=3)
        assert not caller.health()
    assert (type(caught.value).__name__, caught.value.code) == ("ModelNotReady", "model_not_found")
    assert time.monotonic() - began < MARGIN

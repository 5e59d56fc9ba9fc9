"""The same calls give the same results on NVIDIA's own repositories as on ours, and what these lack is reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from inflight_client import Client, InflightError, Sampling
from inflight_client.results import UNKNOWN, Generation

from inflight.deploy.server.server import Server
from tests.client.support.client_variants import CLIENT_VARIANTS, ClientVariant, SyncCaller, SyncStream
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.standins.kserve import StandInServer
from tests.standins.kserve.repository import ModelSpec, llmapi, text_models

PROMPT = "The quick brown fox"
CHAT = [{"role": "user", "content": "Is there tea?"}]
ENDLESS = 100_000
"""Tokens of an answer that no test sees the end of: more than a minute and a half, with a step each millisecond."""


class Kind(NamedTuple):
    """A deployment, and what it tells beside the text."""

    models: dict[str, ModelSpec]
    reasons: bool
    counts: bool
    log_probs: bool = True


BLS = ("ensemble",)
KINDS = {
    "ensemble": Kind(text_models(), reasons=False, counts=True),
    "bls": Kind(text_models(without=BLS), reasons=False, counts=True),
    "llmapi": Kind(llmapi(), reasons=True, counts=False, log_probs=False),
}
VARIANTS = {
    "accumulating bls": Kind(text_models(without=BLS, accumulate=True), reasons=False, counts=True),
    "older ensemble": Kind(text_models(older=True, batches=False), reasons=False, counts=False),
}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 9},
    "sampled": {"max_tokens": 5, "sampling": Sampling(temperature=0.7, top_k=5, top_p=0.9, seed=7)},
    "penalized": {"max_tokens": 5, "sampling": Sampling(presence_penalty=0.1, frequency_penalty=0.1, temperature=0)},
    "ends at a word": {"max_tokens": 40, "sampling": Sampling(stop=(" brown",))},
    "ends within a token": {"max_tokens": 40, "sampling": Sampling(stop=("row", "no such word"))},
    "ends across tokens": {"max_tokens": 40, "sampling": Sampling(stop="k brown f")},
    "may have ended": {"max_tokens": 3, "sampling": Sampling(stop=" quick brown dog")},
    "timed": {"max_tokens": 5, "timeout": 60, "first_token_timeout": 60},
}


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def expected(paced_server: Server) -> Callable[..., Generation]:
    """What our server answers, each call asked once."""
    client = Client(paced_server.grpc_address)
    known: dict[str, Generation] = {}

    def answer(name: str, prompt: Any = PROMPT, **options: Any) -> Generation:
        if name not in known:
            known[name] = client.generate(prompt, **options)
        return known[name]

    return answer


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[tuple[Kind, StandInServer]]:
    kind = KINDS[request.param]
    with StandInServer(kind.models, checkpoint) as server:
        yield kind, server


@pytest.fixture(params=CLIENT_VARIANTS, ids=str)
def caller(
    request: pytest.FixtureRequest, served: tuple[Kind, StandInServer], checkpoint: Path
) -> Iterator[SyncCaller]:
    with calling(request.param, served[1], chat_template=checkpoint) as client:
        yield client
    idle(served[1])


def calling(way: ClientVariant, server: StandInServer, **options: Any) -> Any:
    return way.client_at(server.http_address if way.protocol == "http" else f"grpc://{server.grpc_address}", **options)


def idle(server: StandInServer) -> None:
    wait_until(lambda: not server.engine.in_flight, "the end of all requests", 30)


def check(kind: Kind, found: Generation, ours: Generation) -> None:
    assert found.text == ours.text
    # Stop words are found by the client too, so that reason is known of every deployment.
    assert found.finish_reason == (ours.finish_reason if kind.reasons or ours.finish_reason == "stop_word" else UNKNOWN)
    assert (found.usage is None) == (not kind.counts)
    assert found.usage is None or ours.usage is None or found.usage.input_tokens == ours.usage.input_tokens


def test_the_same_calls_give_the_same_results(
    served: tuple[Kind, StandInServer], caller: SyncCaller, expected: Callable[..., Generation]
) -> None:
    compare(served[0], caller, expected)


@pytest.mark.parametrize("way", [ClientVariant("grpc", aio=False), ClientVariant("http", aio=True)], ids=str)
@pytest.mark.parametrize("kind", VARIANTS.values(), ids=VARIANTS)
def test_so_they_do_where_text_accumulates_or_tensors_are_older(
    kind: Kind, way: ClientVariant, checkpoint: Path, expected: Callable[..., Generation]
) -> None:
    with StandInServer(kind.models, checkpoint) as server, calling(way, server) as caller:
        compare(kind, caller, expected)
        if "ensemble" in kind.models:
            stream = caller.stream(PROMPT, max_tokens=ENDLESS, request_id="mine")
            next(stream)
            caller.cancel("mine")
            assert list(stream)[-1].finish_reason == UNKNOWN
        idle(server)


def compare(kind: Kind, caller: SyncCaller, expected: Callable[..., Generation]) -> None:
    """Make all the calls, whole and streamed."""
    for name, options in CALLS.items():
        ours = expected(name, **options)
        check(kind, caller.generate(PROMPT, **options), ours)
        stream = caller.stream(PROMPT, **options)
        deltas = list(stream)
        assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        assert stream.generation is not None
        check(kind, stream.generation, ours)
        if kind.counts and ours.finish_reason == "length":
            assert stream.generation.usage == ours.usage


def test_what_is_told_beside_the_text_is_the_same(
    served: tuple[Kind, StandInServer], caller: SyncCaller, expected: Callable[..., Generation]
) -> None:
    kind, _ = served
    options = {"max_tokens": 4, "return_log_probs": True}
    if not kind.log_probs:
        with raises(InflightError, "unsupported_input", naming="return_log_probs"):
            caller.generate(PROMPT, **options)
        return
    ours = expected("log probs", **options)
    for found in (caller.generate(PROMPT, **options), streamed(caller, **options)):
        assert (found.text, found.log_probs) == (ours.text, ours.log_probs)
        assert found.cumulative_log_prob == ours.cumulative_log_prob == -2.0


def streamed(caller: SyncCaller, **options: Any) -> Generation:
    stream = caller.stream(PROMPT, **options)
    assert len(list(stream)) > 1
    assert stream.generation is not None
    return stream.generation


def test_a_conversation_is_rendered_by_the_client(
    caller: SyncCaller, checkpoint: Path, expected: Callable[..., Generation]
) -> None:
    from inflight_client.chat_template import ChatTemplate

    text = ChatTemplate.from_directory(checkpoint).render(CHAT)
    ours = expected("conversation", text, max_tokens=12)
    assert caller.generate(CHAT, max_tokens=12).text == ours.text


def test_many_prompts_come_back_in_order(caller: SyncCaller) -> None:
    prompts = [f"number {number}" for number in range(12)]
    answers = list(caller.generate_many(prompts, concurrency=4, max_tokens=8))
    assert [answer.text.startswith(prompt) for answer, prompt in zip(answers, prompts, strict=True)] == [True] * 12


def until_text(stream: SyncStream) -> str:
    """Read until something was said: the first token is BOS, which has no text."""
    return next(delta.text for delta in stream if delta.text)


def test_leaving_a_stream_ends_the_request(served: tuple[Kind, StandInServer], caller: SyncCaller) -> None:
    _, server = served
    before = server.engine.cancels
    stream = caller.stream(PROMPT, max_tokens=ENDLESS)
    until_text(stream)
    stream.close()
    idle(server)
    assert server.engine.cancels == before + 1


def test_a_time_too_short_ends_the_request(served: tuple[Kind, StandInServer], caller: SyncCaller) -> None:
    caller.health()  # the deployment is known, whatever the machine does meanwhile
    with raises(InflightError, "deadline_exceeded"):
        caller.generate(PROMPT, max_tokens=ENDLESS, timeout=0.3)
    idle(served[1])


def test_a_request_is_cancelled_by_its_id_where_ids_are_known(
    served: tuple[Kind, StandInServer], caller: SyncCaller
) -> None:
    kind, server = served
    stream = caller.stream(PROMPT, max_tokens=ENDLESS, request_id="mine")
    first = until_text(stream)
    if "tensorrt_llm_bls" in kind.models and "ensemble" not in kind.models:
        with raises(InflightError, "unsupported_input", naming="cancel"):
            caller.cancel("mine")
        stream.close()
        return
    caller.cancel("mine")
    rest = list(stream)
    assert rest[-1].finish_reason == ("cancelled" if kind.reasons else UNKNOWN)
    said = first + "".join(delta.text for delta in rest)
    assert ((PROMPT + " ") * ENDLESS).startswith(said) or (PROMPT * ENDLESS).startswith(said)
    caller.cancel("nobody")
    idle(server)


def test_what_is_refused_is_told_by_the_client_or_in_the_servers_words(caller: SyncCaller) -> None:
    for options, words in (({"priority": 1}, "priority"), ({"tenant": "lab"}, "tenant")):
        with raises(InflightError, "unsupported_input", naming=words):
            caller.generate(PROMPT, **options)
    with raises(InflightError, "invalid_request", naming="Prompt length") as raised:
        caller.generate("far too long " * 1000, max_tokens=2)
    assert "Traceback" not in str(raised.value)


@pytest.mark.parametrize("way", CLIENT_VARIANTS, ids=str)
def test_a_whole_answer_that_the_llm_api_leaves_without_an_end_lasts_no_longer_than_its_time(
    way: ClientVariant, checkpoint: Path
) -> None:
    """Upstream's model sends nothing more to whom asked for a whole answer that was stopped by its id."""
    with StandInServer(llmapi(), checkpoint) as server, calling(way, server) as caller:
        caller.health()
        stopper = threading.Timer(0.2, server.engine.stop, ["mine"])
        stopper.start()
        with pytest.raises(InflightError) as raised:
            caller.generate(PROMPT, max_tokens=ENDLESS, request_id="mine", timeout=0.5)
        stopper.join()
        assert raised.value.code == "deadline_exceeded"
        idle(server)


@pytest.mark.parametrize("way", CLIENT_VARIANTS, ids=str)
@pytest.mark.parametrize("models", [text_models(decoupled=False), llmapi(decoupled=False)], ids=["ensemble", "llmapi"])
def test_a_deployment_that_does_not_stream_answers_whole(
    way: ClientVariant, models: dict[str, ModelSpec], checkpoint: Path
) -> None:
    with StandInServer(models, checkpoint) as server, calling(way, server) as caller:
        assert caller.generate(PROMPT, max_tokens=6, first_token_timeout=60).text == PROMPT
        with raises(InflightError, "unsupported_input", naming="stream"):
            next(caller.stream(PROMPT))


@pytest.mark.parametrize("way", CLIENT_VARIANTS, ids=str)
def test_a_server_that_keeps_index_and_configurations_to_itself_is_used_all_the_same(
    way: ClientVariant, checkpoint: Path
) -> None:
    restricted = ("model-repository", "model-config")
    with StandInServer(text_models(), checkpoint, restricted=restricted) as server, calling(way, server) as caller:
        assert caller.generate(PROMPT, max_tokens=6).text == PROMPT
        assert "".join(delta.text for delta in caller.stream(PROMPT, max_tokens=6)) == PROMPT


def test_preprocessing_that_adds_no_special_tokens_gets_a_conversation_as_ours_renders_it(
    checkpoint: Path, expected: Callable[..., Generation]
) -> None:
    with (
        StandInServer(text_models(add_special_tokens="false"), checkpoint) as server,
        Client(server.grpc_address, chat_template=checkpoint) as client,
    ):
        answer = client.generate(CHAT, max_tokens=12)
    ours = expected("messages", CHAT, max_tokens=12)
    assert (answer.text, answer.usage) == (ours.text, ours.usage)

"""Tokens on the short way from the engine's model to a model that called it."""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest

from inflight.runtime.chunk_messages import PARAMETER, AnswerEnd, Caller, ChunkReceiver, ChunkSender, TokenChunk
from inflight.runtime.messages import RequestError, Timings, TokenEvent

SOON = 30


@pytest.fixture
def model() -> str:
    return f"a-model-{secrets.token_hex(4)}"


@pytest.fixture
def received() -> queue.Queue[TokenChunk]:
    return queue.Queue()


@pytest.fixture
def receiver(model: str, received: queue.Queue[TokenChunk]) -> Iterator[ChunkReceiver]:
    receiver = ChunkReceiver(model, received.put, print)
    yield receiver
    receiver.close()


@pytest.fixture
def sender() -> Iterator[ChunkSender]:
    sender = ChunkSender()
    yield sender
    sender.close()


def caller(sender: ChunkSender, model: str, key: int = 7) -> Caller:
    found = Caller.of(sender, json.dumps({PARAMETER: model}), key)
    assert found is not None
    return found


@pytest.mark.usefixtures("receiver")
def test_chunks_come_in_order_with_all_they_hold(
    model: str, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, model)
    asks.give(6, TokenEvent(1, (1, 2), timings=Timings(10, 20, 30), log_probs=(-0.5, -1.25)))
    asks.give(2**64 - 1, TokenEvent(2, (3,)))
    assert received.empty(), "nothing goes before it is flushed"
    asks.end(8)
    asks.fail("the engine died; try again", "engine_died")
    got = [received.get(timeout=SOON) for _ in range(4)]
    assert [chunk.key for chunk in got] == [6, 2**64 - 1, 8, 7]
    assert [list(chunk.token_ids) for chunk in got] == [[1, 2], [3], [], []]
    assert list(got[0].log_probs) == [-0.5, -1.25]
    assert [chunk.timings for chunk in got] == [Timings(10, 20, 30), None, None, None]
    assert [chunk.ended for chunk in got] == [False, False, True, False]
    assert list(got[3].error or ()) == ["the engine died; try again", "engine_died"]


@pytest.mark.usefixtures("receiver")
def test_a_step_of_many_streams_arrives_whole(
    model: str, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, model)
    for key in range(2000):
        asks.give(key, TokenEvent(1, (key,) * 8, log_probs=(-1 / 3,) * 8))
    sender.flush()
    got = [received.get(timeout=SOON) for _ in range(2000)]
    assert [chunk.key for chunk in got] == list(range(2000))


def test_what_comes_meanwhile_comes_together(model: str, sender: ChunkSender) -> None:
    calls: queue.Queue[TokenChunk] = queue.Queue()
    go_on = threading.Event()

    def slow(chunk: TokenChunk) -> None:
        calls.put(chunk)
        assert go_on.wait(SOON)

    receiver = ChunkReceiver(model, slow, print)
    asks = caller(sender, model)
    for token in range(40):
        asks.give(1, TokenEvent(1, (token,)))
        sender.flush()  # does not wait for who handles them, who stands still
    first = calls.get(timeout=SOON)
    go_on.set()
    tokens = list(first.token_ids)
    later = 0
    while len(tokens) < 40:
        tokens += calls.get(timeout=SOON).token_ids
        later += 1
    assert tokens == list(range(40))
    assert later < 20
    receiver.close()


def test_nobody_listens_and_nothing_breaks(model: str, sender: ChunkSender) -> None:
    caller(sender, model).end(7)


def test_who_asks_for_nothing_gets_nothing(sender: ChunkSender) -> None:
    assert Caller.of(sender, "{}", 7) is None
    assert Caller.of(sender, '{"other": "inflight_chunks"}', 7) is None
    assert Caller.of(sender, json.dumps({PARAMETER: "a"}), 0) is None


@pytest.mark.usefixtures("receiver")
@pytest.mark.parametrize("message", [b"", b"{", b"[1]", b'[["a"]]', b"[[1, 2, 3, 4, 5, 6, 7]]", b"\xff\x00", b"null"])
def test_what_no_engine_sends_is_passed_over(
    model: str, sender: ChunkSender, received: queue.Queue[TokenChunk], message: bytes
) -> None:
    address = f"\0inflight-chunks-{os.environ.get('INFLIGHT_SERVER_ID') or os.getppid()}-{model}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(message, address)
    caller(sender, model).end(7)
    while not received.get(timeout=SOON).ended:
        pass


def test_joined_chunks_hold_both() -> None:
    joined = TokenChunk(7, (1,), (-1.0,)).joined(TokenChunk(7, (2, 3), (-2.0, -3.0))).joined(TokenChunk(7, ended=True))
    assert joined == TokenChunk(7, [1, 2, 3], [-1.0, -2.0, -3.0], ended=True)
    failed = TokenChunk(7, error=("it failed", "engine_died"))
    assert failed.joined(TokenChunk(7, ended=True)).error == joined.joined(failed).error == ("it failed", "engine_died")
    timed = TokenChunk(7, (1,), moments=(10, 20, 30, 0)).joined(TokenChunk(7, (2,)))
    assert timed.timings == Timings(10, 20, 30)


def test_a_chunk_that_fails_is_told_and_all_others_arrive(
    model: str, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    reports: queue.Queue[str] = queue.Queue()

    def take(chunk: TokenChunk) -> None:
        if chunk.key == 1:
            raise ValueError("it ended before")
        received.put(chunk)

    receiver = ChunkReceiver(model, take, reports.put)
    asks = caller(sender, model)
    for _ in range(2):
        for key in (1, 2):
            asks.give(key, TokenEvent(1, (5,)))
        sender.flush()
        assert received.get(timeout=SOON).key == 2
    assert reports.get(timeout=SOON) == "tokens of a stream could not be handed on: ValueError: it ended before"
    assert reports.empty()
    receiver.close()


@pytest.mark.parametrize("apart", [True, False])
def test_who_waits_for_an_end_is_told_of_a_failure_that_comes_twice(
    model: str, sender: ChunkSender, received: queue.Queue[TokenChunk], apart: bool
) -> None:
    end, reports = AnswerEnd(), list[str]()

    def take(chunk: TokenChunk) -> None:
        end.take(chunk)
        received.put(chunk)

    receiver = ChunkReceiver(model, take, reports.append)
    asks = caller(sender, model)
    asks.fail("Exceeds maximum queue size", "overloaded")
    if apart:
        received.get(timeout=SOON)
    asks.end(7)
    with pytest.raises(RequestError, match="Exceeds maximum queue size") as failure:
        end.wait()
    assert failure.value.code == "overloaded"
    while not received.get(timeout=SOON).ended:
        pass
    assert reports == []
    receiver.close()


def test_who_waits_for_an_end_goes_on_with_it() -> None:
    end = AnswerEnd()
    end.take(TokenChunk(7, (1,)))
    end.take(TokenChunk(7, ended=True))
    end.take(TokenChunk(7, error=("too late", "engine_died")))
    end.wait()

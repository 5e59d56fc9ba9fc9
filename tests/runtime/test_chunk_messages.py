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

from inflight.runtime.chunk_messages import PARAMETER, Caller, ChunkReceiver, ChunkSender, TokenChunk

SOON = 30


@pytest.fixture
def model() -> str:
    return f"a-model-{secrets.token_hex(4)}"


@pytest.fixture
def received() -> queue.Queue[TokenChunk]:
    return queue.Queue()


@pytest.fixture
def receiver(model: str, received: queue.Queue[TokenChunk]) -> Iterator[ChunkReceiver]:
    def put(chunks: list[TokenChunk]) -> None:
        for chunk in chunks:
            received.put(chunk)

    receiver = ChunkReceiver(model, put)
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
    asks.give(7, (1, 2), (-0.5, -1.25))
    asks.give(2**64 - 1, (3,), ())
    assert received.empty(), "nothing goes before it is flushed"
    asks.end(7)
    asks.fail("the engine died; try again", "engine_died")
    got = [received.get(timeout=SOON) for _ in range(4)]
    assert [chunk.key for chunk in got] == [7, 2**64 - 1, 7, 7]
    assert [list(chunk.token_ids) for chunk in got] == [[1, 2], [3], [], []]
    assert list(got[0].log_probs) == [-0.5, -1.25]
    assert [chunk.ended for chunk in got] == [False, False, True, False]
    assert list(got[3].error or ()) == ["the engine died; try again", "engine_died"]


@pytest.mark.usefixtures("receiver")
def test_a_step_of_many_streams_arrives_whole(
    model: str, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, model)
    for key in range(2000):
        asks.give(key, (key,) * 8, (-1 / 3,) * 8)
    sender.flush()
    got = [received.get(timeout=SOON) for _ in range(2000)]
    assert [chunk.key for chunk in got] == list(range(2000))


def test_what_comes_meanwhile_comes_together(model: str, sender: ChunkSender) -> None:
    calls: queue.Queue[list[TokenChunk]] = queue.Queue()
    go_on = threading.Event()

    def slow(chunks: list[TokenChunk]) -> None:
        calls.put(chunks)
        assert go_on.wait(SOON)

    receiver = ChunkReceiver(model, slow)
    asks = caller(sender, model)
    for token in range(40):
        asks.give(1, (token,), ())
        sender.flush()  # does not wait for who handles them, who stands still
    first = calls.get(timeout=SOON)
    go_on.set()
    tokens = [token for chunk in first for token in chunk.token_ids]
    later = 0
    while len(tokens) < 40:
        tokens += [token for chunk in calls.get(timeout=SOON) for token in chunk.token_ids]
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

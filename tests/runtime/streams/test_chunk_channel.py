"""Tokens on the short way from the engine's model to a model that called it."""

from __future__ import annotations

import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from inflight.runtime.messages import RequestError, RequestTimings, TokenEvent
from inflight.runtime.streams.chunk_channel import (
    CHUNKS_PARAMETER,
    AnswerCompletion,
    ChunkReceiver,
    ChunkSender,
    ChunkSubscriber,
    TokenChunk,
)
from inflight.runtime.streams.local_socket import connect
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until

SOON = 30
GARBLED = rb"""
{ [1] [[]] [[[]]] [["a"]] [[1,2,3,4,5,6,7,8]] null "text" [[7,["a"]]] [[7,[1.5]]] [[7,[],["a"]]] [[7,[],[],"true"]]
[[7,[],[],false,["a"]]] [[7,[],[],false,[1,2]]] [[7,[],[],false,null,[1]]] [[7,[],[],false,null,[],{}]] [[7],[8,true]]
""".split()


@pytest.fixture
def received() -> queue.Queue[TokenChunk]:
    return queue.Queue()


@pytest.fixture
def receiver(received: queue.Queue[TokenChunk]) -> Iterator[ChunkReceiver]:
    receiver = ChunkReceiver(received.put, print)
    yield receiver
    receiver.close()


@pytest.fixture
def sender() -> Iterator[ChunkSender]:
    sender = ChunkSender(print)
    yield sender
    sender.close()


def caller(sender: ChunkSender, receiver: ChunkReceiver, key: int = 7) -> ChunkSubscriber:
    found = ChunkSubscriber.from_parameters(sender, json.dumps({CHUNKS_PARAMETER: receiver.address}), key)
    assert found is not None
    return found


def test_chunks_come_in_order_with_all_they_hold(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, receiver)
    asks.send(6, TokenEvent(1, (1, 2), timings=RequestTimings(10, 20, 30), log_probs=(-0.5, -1.25)))
    asks.send(2**64 - 1, TokenEvent(2, (3,)))
    assert received.empty(), "nothing goes before it is flushed"
    asks.send_end(8)
    asks.send_error("the engine died; try again", "engine_died")
    got = [received.get(timeout=SOON) for _ in range(4)]
    assert [chunk.key for chunk in got] == [6, 2**64 - 1, 8, 7]
    assert [list(chunk.token_ids) for chunk in got] == [[1, 2], [3], [], []]
    assert list(got[0].log_probs) == [-0.5, -1.25]
    assert [chunk.timings for chunk in got] == [RequestTimings(10, 20, 30), None, None, None]
    assert [chunk.ended for chunk in got] == [False, False, True, False]
    assert list(got[3].error or ()) == ["the engine died; try again", "engine_died"]


def test_a_step_of_many_streams_arrives_whole(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, receiver)
    for key in range(2000):
        asks.send(key, TokenEvent(1, (key,) * 8, log_probs=(-1 / 3,) * 8))
    sender.flush()
    got = [received.get(timeout=SOON) for _ in range(2000)]
    assert [chunk.key for chunk in got] == list(range(2000))


@pytest.mark.parametrize("socket_buffer", [None, 1])
def test_a_message_of_any_length_arrives_whole(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk], socket_buffer: int | None
) -> None:
    asks = caller(sender, receiver)
    if socket_buffer is not None:  # the kernel makes it its least: 4.5 KB, after which it says EMSGSIZE
        (outlet,) = sender._outboxes.values()
        outlet.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, socket_buffer)
    ids, log_probs = list(range(8192)), [-number / 7 for number in range(8192)]
    asks.send(1, TokenEvent(1, tuple(ids), log_probs=tuple(log_probs), timings=RequestTimings(10, 20, 30)))
    asks.send_end(1)
    asks.send_error("\U0001f375" * 100_000, "invalid_parameter")
    chunk = received.get(timeout=SOON)
    assert chunk.moments == [10, 20, 30, 0]
    while not chunk.ended:
        later = received.get(timeout=SOON)
        later.check_position(chunk.end)
        chunk = chunk.merged(later)
    assert (chunk.token_ids, chunk.log_probs) == (ids, log_probs)
    sentence, code = received.get(timeout=SOON).error or ("", "")
    assert (set(sentence), code) == ({"\U0001f375"}, "invalid_parameter")


def test_a_receiver_that_does_not_read_holds_up_nobody_and_loses_nothing(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, receiver)
    address = secrets.token_hex(16)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as idle:
        idle.bind(f"\0inflight-chunks-{address}")
        idle.listen()
        to_idle = ChunkSubscriber.from_parameters(sender, json.dumps({CHUNKS_PARAMETER: address}), 9)
        assert to_idle is not None
        for token in range(500):
            for each in (asks, to_idle):
                each.send(1, TokenEvent(1, (token,)))
            sender.flush()
        for each in (asks, to_idle):
            each.send_end(1)
        found = TokenChunk(1)
        while not found.ended:
            found = found.merged(received.get(timeout=SOON))
        assert found.token_ids == list(range(500))
        late = TokenChunk(1)
        connection, _ = idle.accept()
        with connection:
            connection.settimeout(SOON)
            while not late.ended:
                for fields in json.loads(connection.recv(2**18)):
                    late = late.merged(TokenChunk(*fields))
        assert (late.error, late.token_ids) == (None, list(range(500)))


def test_a_receiver_that_goes_while_it_is_held_up_breaks_nothing(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks, address = caller(sender, receiver), secrets.token_hex(16)

    def reached() -> bool:
        try:
            sender.connect(address)
        except RequestError:
            return False
        return True

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as idle:
        idle.bind(f"\0inflight-chunks-{address}")
        idle.listen()
        to_idle = ChunkSubscriber.from_parameters(sender, json.dumps({CHUNKS_PARAMETER: address}), 9)
        assert to_idle is not None
        to_idle.send(1, TokenEvent(1, tuple(range(200_000))))
        sender.flush()
        to_idle.send(1, TokenEvent(1, (1,)))
    wait_until(lambda: not reached(), "the sender to notice", SOON)
    asks.send_end(7)
    assert received.get(timeout=SOON).ended


def test_what_comes_meanwhile_comes_together(receiver: ChunkReceiver, sender: ChunkSender) -> None:
    calls: queue.Queue[TokenChunk] = queue.Queue()
    go_on = threading.Event()

    def slow(chunk: TokenChunk) -> None:
        calls.put(chunk)
        assert go_on.wait(SOON)

    receiver = ChunkReceiver(slow, print)
    asks = caller(sender, receiver)
    for token in range(40):
        asks.send(1, TokenEvent(1, (token,)))
        sender.flush()  # does not wait for the handler, which is blocked
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


@pytest.mark.parametrize("address", ["", "evil", "0" * 32, "../etc", "\0", "\ud800", 7, "x" * 200])
def test_only_a_model_that_listens_can_be_named(sender: ChunkSender, address: str | int) -> None:
    if address == "":
        assert ChunkSubscriber.from_parameters(sender, json.dumps({CHUNKS_PARAMETER: address}), 7) is None
        return
    with raises(RequestError, "invalid_parameter"):
        ChunkSubscriber.from_parameters(sender, json.dumps({CHUNKS_PARAMETER: address}), 7)


def test_a_receiver_that_has_gone_breaks_nothing(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    gone = ChunkReceiver(print, print)
    asks, to_gone = caller(sender, receiver), caller(sender, gone)
    gone.close()
    for _ in range(3):
        to_gone.send_end(7)
    asks.send_end(7)
    assert received.get(timeout=SOON).ended


def test_who_asks_for_nothing_gets_nothing(sender: ChunkSender) -> None:
    assert ChunkSubscriber.from_parameters(sender, "{}", 7) is None
    assert ChunkSubscriber.from_parameters(sender, '{"other": "inflight_chunks"}', 7) is None
    assert ChunkSubscriber.from_parameters(sender, json.dumps({CHUNKS_PARAMETER: "a"}), 0) is None


@pytest.mark.parametrize("message", [*GARBLED, b"\xff\x00"])
def test_a_garbled_message_takes_no_other_with_it(message: bytes) -> None:
    chunks: queue.Queue[TokenChunk] = queue.Queue()
    begun, go_on = threading.Event(), threading.Event()

    def take(chunk: TokenChunk) -> None:
        chunks.put(chunk)
        begun.set()
        assert go_on.wait(SOON)

    receiver = ChunkReceiver(take, print)
    with connect(f"inflight-chunks-{receiver.address}") as engine:
        engine.send(b"[[1]]")
        assert begun.wait(SOON)
        for sent in (b"[[2]]", message, b"[[3]]"):  # read together, since the handler is busy with the first
            engine.send(sent)
        time.sleep(0.05)
        go_on.set()
        assert [chunks.get(timeout=SOON).key for _ in range(3)] == [1, 2, 3]
    receiver.close()


def test_joined_chunks_hold_both() -> None:
    joined = TokenChunk(7, (1,), (-1.0,), position=4).merged(TokenChunk(7, (2, 3), (-2.0, -3.0), position=5))
    joined = joined.merged(TokenChunk(7, ended=True, position=7))
    assert joined == TokenChunk(7, [1, 2, 3], [-1.0, -2.0, -3.0], ended=True, position=4)
    failed = TokenChunk(7, error=("it failed", "engine_died"))
    assert failed.merged(TokenChunk(7, ended=True)).error == joined.merged(failed).error == ("it failed", "engine_died")
    timed = TokenChunk(7, (1,), moments=(10, 20, 30, 0)).merged(TokenChunk(7, (2,), position=1))
    assert timed.timings == RequestTimings(10, 20, 30)


@pytest.mark.parametrize("later", [TokenChunk(7, (3,), position=2), TokenChunk(7, ended=True)])
def test_lost_tokens_fail_the_request(later: TokenChunk) -> None:
    first = TokenChunk(7, (1,))
    for chunk, position in ((later, 1), (first.merged(later), 0)):
        with raises(RequestError, "answer_damaged"):
            chunk.check_position(position)
    first.merged(TokenChunk(7, (3,), position=1)).check_position(0)


def test_a_chunk_that_fails_is_told_and_all_others_arrive(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    reports: queue.Queue[str] = queue.Queue()

    def take(chunk: TokenChunk) -> None:
        if chunk.key == 1:
            raise ValueError("it ended before")
        received.put(chunk)

    receiver = ChunkReceiver(take, reports.put)
    asks = caller(sender, receiver)
    for _ in range(2):
        for key in (1, 2):
            asks.send(key, TokenEvent(1, (5,)))
        sender.flush()
        assert received.get(timeout=SOON).key == 2
    assert reports.get(timeout=SOON) == "tokens of a stream could not be handed on: ValueError: it ended before"
    assert reports.empty()
    receiver.close()


@pytest.mark.parametrize("apart", [True, False])
def test_who_waits_for_an_end_is_told_of_a_failure_that_comes_twice(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk], apart: bool
) -> None:
    end, reports = AnswerCompletion(), list[str]()

    def take(chunk: TokenChunk) -> None:
        end.feed(chunk)
        received.put(chunk)

    receiver = ChunkReceiver(take, reports.append)
    asks = caller(sender, receiver)
    asks.send_error("Exceeds maximum queue size", "overloaded")
    if apart:
        received.get(timeout=SOON)
    asks.send_end(7)
    with raises(RequestError, "overloaded"):
        end.wait()
    while not received.get(timeout=SOON).ended:
        pass
    assert reports == []
    receiver.close()


def test_who_waits_for_an_end_goes_on_with_it() -> None:
    end = AnswerCompletion()
    end.feed(TokenChunk(7, (1,)))
    end.feed(TokenChunk(7, ended=True))
    end.feed(TokenChunk(7, error=("too late", "engine_died")))
    end.wait()

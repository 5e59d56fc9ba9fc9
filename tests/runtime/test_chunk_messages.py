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

from inflight.runtime.chunk_messages import PARAMETER, AnswerEnd, Caller, ChunkReceiver, ChunkSender, TokenChunk
from inflight.runtime.local_socket import connect
from inflight.runtime.messages import RequestError, Timings, TokenEvent

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


def caller(sender: ChunkSender, receiver: ChunkReceiver, key: int = 7) -> Caller:
    found = Caller.of(sender, json.dumps({PARAMETER: receiver.address}), key)
    assert found is not None
    return found


def test_chunks_come_in_order_with_all_they_hold(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, receiver)
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


def test_a_step_of_many_streams_arrives_whole(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks = caller(sender, receiver)
    for key in range(2000):
        asks.give(key, TokenEvent(1, (key,) * 8, log_probs=(-1 / 3,) * 8))
    sender.flush()
    got = [received.get(timeout=SOON) for _ in range(2000)]
    assert [chunk.key for chunk in got] == list(range(2000))


@pytest.mark.parametrize("socket_buffer", [None, 1])
def test_a_message_of_any_length_arrives_whole(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk], socket_buffer: int | None
) -> None:
    asks = caller(sender, receiver)
    if socket_buffer is not None:  # the kernel makes it its least: 4.5 KB, after which it says EMSGSIZE
        (outlet,) = sender._outlets.values()
        outlet.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, socket_buffer)
    ids, log_probs = list(range(8192)), [-number / 7 for number in range(8192)]
    asks.give(1, TokenEvent(1, tuple(ids), log_probs=tuple(log_probs), timings=Timings(10, 20, 30)))
    asks.end(1)
    asks.fail("\U0001f375" * 100_000, "invalid_parameter")
    chunk = received.get(timeout=SOON)
    assert chunk.moments == [10, 20, 30, 0]
    while not chunk.ended:
        later = received.get(timeout=SOON)
        later.check_follows(chunk.end)
        chunk = chunk.joined(later)
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
        to_idle = Caller.of(sender, json.dumps({PARAMETER: address}), 9)
        assert to_idle is not None
        for token in range(500):
            for each in (asks, to_idle):
                each.give(1, TokenEvent(1, (token,)))
            sender.flush()
        for each in (asks, to_idle):
            each.end(1)
        found = TokenChunk(1)
        while not found.ended:
            found = found.joined(received.get(timeout=SOON))
        assert found.token_ids == list(range(500))
        late = TokenChunk(1)
        connection, _ = idle.accept()
        with connection:
            connection.settimeout(SOON)
            while not late.ended:
                for fields in json.loads(connection.recv(2**18)):
                    late = late.joined(TokenChunk(*fields))
        assert (late.error, late.token_ids) == (None, list(range(500)))


def test_a_receiver_that_goes_while_it_is_held_up_breaks_nothing(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    asks, address = caller(sender, receiver), secrets.token_hex(16)

    def reached() -> bool:
        try:
            sender.reach(address)
        except RequestError:
            return False
        return True

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as idle:
        idle.bind(f"\0inflight-chunks-{address}")
        idle.listen()
        to_idle = Caller.of(sender, json.dumps({PARAMETER: address}), 9)
        assert to_idle is not None
        to_idle.give(1, TokenEvent(1, tuple(range(200_000))))
        sender.flush()
        to_idle.give(1, TokenEvent(1, (1,)))
    deadline = time.monotonic() + SOON
    while reached() and time.monotonic() < deadline:  # until the sender has noticed
        time.sleep(0.01)
    asks.end(7)
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


@pytest.mark.parametrize("address", ["", "evil", "0" * 32, "../etc", "\0", "\ud800", 7, "x" * 200])
def test_only_a_model_that_listens_can_be_named(sender: ChunkSender, address: str | int) -> None:
    if address == "":
        assert Caller.of(sender, json.dumps({PARAMETER: address}), 7) is None
        return
    with pytest.raises(RequestError) as refused:
        Caller.of(sender, json.dumps({PARAMETER: address}), 7)
    assert refused.value.code == "invalid_parameter"


def test_a_receiver_that_has_gone_breaks_nothing(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk]
) -> None:
    gone = ChunkReceiver(print, print)
    asks, to_gone = caller(sender, receiver), caller(sender, gone)
    gone.close()
    for _ in range(3):
        to_gone.end(7)
    asks.end(7)
    assert received.get(timeout=SOON).ended


def test_who_asks_for_nothing_gets_nothing(sender: ChunkSender) -> None:
    assert Caller.of(sender, "{}", 7) is None
    assert Caller.of(sender, '{"other": "inflight_chunks"}', 7) is None
    assert Caller.of(sender, json.dumps({PARAMETER: "a"}), 0) is None


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
    joined = TokenChunk(7, (1,), (-1.0,), position=4).joined(TokenChunk(7, (2, 3), (-2.0, -3.0), position=5))
    joined = joined.joined(TokenChunk(7, ended=True, position=7))
    assert joined == TokenChunk(7, [1, 2, 3], [-1.0, -2.0, -3.0], ended=True, position=4)
    failed = TokenChunk(7, error=("it failed", "engine_died"))
    assert failed.joined(TokenChunk(7, ended=True)).error == joined.joined(failed).error == ("it failed", "engine_died")
    timed = TokenChunk(7, (1,), moments=(10, 20, 30, 0)).joined(TokenChunk(7, (2,), position=1))
    assert timed.timings == Timings(10, 20, 30)


@pytest.mark.parametrize("later", [TokenChunk(7, (3,), position=2), TokenChunk(7, ended=True)])
def test_lost_tokens_fail_the_request(later: TokenChunk) -> None:
    first = TokenChunk(7, (1,))
    for chunk, position in ((later, 1), (first.joined(later), 0)):
        with pytest.raises(RequestError) as failure:
            chunk.check_follows(position)
        assert failure.value.code == "answer_damaged"
    first.joined(TokenChunk(7, (3,), position=1)).check_follows(0)


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
            asks.give(key, TokenEvent(1, (5,)))
        sender.flush()
        assert received.get(timeout=SOON).key == 2
    assert reports.get(timeout=SOON) == "tokens of a stream could not be handed on: ValueError: it ended before"
    assert reports.empty()
    receiver.close()


@pytest.mark.parametrize("apart", [True, False])
def test_who_waits_for_an_end_is_told_of_a_failure_that_comes_twice(
    receiver: ChunkReceiver, sender: ChunkSender, received: queue.Queue[TokenChunk], apart: bool
) -> None:
    end, reports = AnswerEnd(), list[str]()

    def take(chunk: TokenChunk) -> None:
        end.take(chunk)
        received.put(chunk)

    receiver = ChunkReceiver(take, reports.append)
    asks = caller(sender, receiver)
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

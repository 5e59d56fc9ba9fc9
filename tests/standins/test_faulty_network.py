from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import (
    Corrupt,
    CutAt,
    DelayedBytes,
    DirectionFilter,
    Drop,
    Duplicate,
    Slow,
    StallAt,
    Trickle,
    UnitFault,
)
from tests.standins.faulty_network.units import splitter

SOON = 30.0
NEVER = 0.3
"""Seconds after which what has not come is taken for what never comes."""
ANSWER = b"0123456789"


@pytest.fixture
def echo() -> Iterator[str]:
    """A server's address that answers whatever comes with ANSWER, and ends when its client does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(1024):
                connection.sendall(ANSWER)

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SOON)


def asked(address: str, wanted: int = len(ANSWER)) -> tuple[bytes, str]:
    """What comes for one question, and how it ends: whole, closed, reset, or silent."""
    heard = b""
    try:
        with connected(address) as connection:
            connection.settimeout(NEVER)
            connection.sendall(b"?")
            while len(heard) < wanted:
                piece = connection.recv(1024)
                if not piece:
                    return heard, "closed"
                heard += piece
    except TimeoutError:
        return heard, "silent"
    except ConnectionError:
        return heard, "reset"
    return heard, "whole"


@pytest.mark.parametrize(
    ("faults", "heard"),
    [
        (Faults(), (ANSWER, "whole")),
        (Faults(down=(StallAt(),)), (b"", "silent")),
        (Faults(up=(StallAt(),)), (b"", "silent")),
        (Faults(down=(StallAt(4),)), (b"0123", "silent")),
        (Faults(down=(CutAt(4),)), (b"0123", "closed")),
        (Faults(down=(CutAt(4, "half"),)), (b"0123", "closed")),
        (Faults(down=(CutAt(0, "rst"),)), (b"", "reset")),
        (Faults(down=(Drop(2, 3),)), (b"0156789", "silent")),
        (Faults(down=(Trickle(3, 0.001),)), (ANSWER, "whole")),
    ],
)
def test_a_connection_is_treated_as_it_is_told(echo: str, faults: Faults, heard: tuple[bytes, str]) -> None:
    with FaultyNetwork(echo, faults) as network:
        assert asked(network.address) == heard


def test_what_comes_twice_comes_twice_behind_itself(echo: str) -> None:
    with FaultyNetwork(echo, Faults(down=(Duplicate(2, 3),))) as network:
        assert asked(network.address, wanted=13) == (b"0123423456789", "whole")


def test_each_connection_has_its_own_faults_and_the_last_ones_hold_on(echo: str) -> None:
    with FaultyNetwork(echo, Faults(down=(CutAt(1),)), Faults()) as network:
        assert [asked(network.address)[1] for _ in range(3)] == ["closed", "whole", "whole"]
        network.set(Faults(down=(CutAt(2),)))
        assert asked(network.address) == (b"01", "closed")
        assert network.connections == 1


def test_a_network_without_a_server_behind_it_breaks_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with FaultyNetwork(address) as network:
        assert asked(network.address) in [(b"", "reset"), (b"", "closed")]


def test_slowness_adds_up_and_the_same_seed_does_the_same() -> None:
    toxics = (Slow(0.5, jitter=0.25), Trickle(2, 0.125))
    pieces = list(DirectionFilter(toxics, seed=7).feed(b"abcde"))
    assert pieces == list(DirectionFilter(toxics, seed=7).feed(b"abcde"))
    assert pieces != list(DirectionFilter(toxics, seed=8).feed(b"abcde"))
    assert [piece.data for piece in pieces if isinstance(piece, DelayedBytes)] == [b"ab", b"cd", b"e"]
    assert all(0.625 <= piece.pause < 0.875 for piece in pieces if isinstance(piece, DelayedBytes))


def test_garbled_bytes_are_others_at_their_place_alone() -> None:
    line = DirectionFilter((Corrupt(2, 3),), seed=1)
    came = b"".join(
        step.data for part in (b"012", b"3456") for step in line.feed(part) if isinstance(step, DelayedBytes)
    )
    assert [place for place in range(7) if came[place] != b"0123456"[place]] == [2, 3, 4]


@pytest.mark.parametrize("sizes", [1, 2, 5, 100])
def test_units_are_found_however_the_bytes_come(sizes: int) -> None:
    frames = [b"\0\0\2\0\0\0\0\0\1ab", b"\0\0\0\4\0\0\0\0\0", b"\0\0\1\0\1\0\0\0\1c"]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    known = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!"
    chunks = [head, b"3\r\na\r\n\r\n", b"1\r\nb\r\n", b"0\r\n\r\n", known, known]
    for unit, parts, counts in (
        ("frame", frames, [True, False, True]),
        ("chunk", chunks, [False, True, True, False, False, False]),
        ("message", chunks, [False, False, False, False, True, True]),
    ):
        found = splitter(unit)  # type: ignore[arg-type]  # mypy widens it to str
        data = b"".join(parts)
        pieces = [data[start : start + sizes] for start in range(0, len(data), sizes)]
        assert [each for piece in pieces for each in found.feed(piece)] == list(zip(counts, parts, strict=True))


@pytest.mark.parametrize(("what", "came"), [("twice", b"2\r\nab\r\n1\r\nc\r\n1\r\nc\r\n"), ("lost", b"2\r\nab\r\n")])
def test_a_whole_chunk_is_doubled_or_lost(what: str, came: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    line = DirectionFilter((UnitFault("chunk", 1, what),))  # type: ignore[arg-type]
    steps = list(line.feed(head + b"2\r\nab\r\n1\r\nc\r\n"))
    assert steps == [DelayedBytes(head + came)]

"""Ctrl-C in the middle of an answer: the call ends here and on the server, and the client goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from inflight_client import Client

from inflight.deploy.server import Server
from tests.client.leftovers import idle
from tests.serving.metrics_page import page_when


@pytest.fixture
def interrupted() -> Iterator[None]:
    """After half a second a signal raises KeyboardInterrupt, once, as Ctrl-C does in the main thread."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    yield
    timer.cancel()
    timer.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_interrupted_stream_keeps_what_came(paced_server: Server, scheme: str, interrupted: None) -> None:
    """What gRPC's library keeps of a call whose message an interrupt lost goes with the process, so only threads are
    counted."""
    address = paced_server.grpc_address if scheme == "grpc" else paced_server.http_address
    with Client(f"{scheme}://{address}") as client:
        client.generate("tea", max_tokens=1)
        threads = set(threading.enumerate())
        stream = client.stream("one two three four", max_tokens=2000)
        with pytest.raises(KeyboardInterrupt):
            for _ in stream:
                pass
        began = time.monotonic()
        stream.close()
        assert time.monotonic() - began < 30
        assert stream.generation is None
        page_when(paced_server, idle)
        assert set(threading.enumerate()) <= threads
        assert client.generate("tea", max_tokens=2).usage is not None


def test_an_interrupted_whole_answer_ends_on_the_server(paced_server: Server, interrupted: None) -> None:
    """Over gRPC, whose leftovers rule this out elsewhere; Triton notices nothing, so the client asks for it."""
    with Client(f"grpc://{paced_server.grpc_address}") as client:
        client.generate("tea", max_tokens=1)
        with pytest.raises(KeyboardInterrupt):
            client.generate("one two three four", max_tokens=3000)
        began = time.monotonic()
        page_when(paced_server, idle)
        assert time.monotonic() - began < 30  # its end comes after a minute
        assert client.generate("tea", max_tokens=2).usage is not None

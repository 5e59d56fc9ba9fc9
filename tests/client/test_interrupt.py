"""Ctrl-C in the middle of an answer: the call ends here and on the server, and the client goes on."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from inflight_client import Client, Stream

from inflight.deploy.server import Server
from tests.client.leftovers import idle
from tests.serving.metrics_page import page_when


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Called, it has KeyboardInterrupt raised a little later, once, in the main thread, as Ctrl-C does.

    The caller is by then in the middle of an answer that takes far longer: anywhere else it would end the tests. Python
    is told of a signal that the kernel never sent: one that comes when its handler is not there ends the process.
    """
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    timers: list[threading.Timer] = []

    def soon() -> None:
        timers.append(threading.Timer(0.3, _thread.interrupt_main, (signal.SIGUSR1,)))
        timers[-1].start()

    yield soon
    for timer in timers:
        timer.cancel()
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def read_on(stream: Stream) -> None:
    for _ in stream:
        pass


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_interrupted_stream_keeps_what_came(
    paced_server: Server, scheme: str, interrupt: Callable[[], None]
) -> None:
    """What gRPC's library keeps of a call whose message an interrupt lost goes with the process, so only threads are
    counted."""
    address = paced_server.grpc_address if scheme == "grpc" else paced_server.http_address
    with Client(f"{scheme}://{address}") as client:
        client.generate("tea", max_tokens=1)
        threads = set(threading.enumerate())
        stream = client.stream("one two three four", max_tokens=2000)
        next(stream)
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            read_on(stream)
        began = time.monotonic()
        stream.close()
        assert time.monotonic() - began < 30
        assert stream.generation is None
        page_when(paced_server, idle)
        assert set(threading.enumerate()) <= threads
        assert client.generate("tea", max_tokens=2).usage is not None


def test_an_interrupted_whole_answer_ends_on_the_server(paced_server: Server, interrupt: Callable[[], None]) -> None:
    """Over gRPC, whose leftovers rule this out elsewhere; Triton notices nothing, so the client asks for it."""
    with Client(f"grpc://{paced_server.grpc_address}") as client:
        client.generate("tea", max_tokens=1)
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            client.generate("one two three four", max_tokens=3000)
        began = time.monotonic()
        page_when(paced_server, idle)
        assert time.monotonic() - began < 30  # its end comes after a minute
        assert client.generate("tea", max_tokens=2).usage is not None

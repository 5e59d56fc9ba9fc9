"""Many prompts that are left in the middle: by an error, by Ctrl-C, by the end of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from inflight_client import Client
from inflight_client.handout import END_SECONDS

from tests.client.held_answers import SOON, WAIT, Held, LoopError, until
from tests.standins.weak_network import Faults, WeakNetwork
from tests.standins.weak_toxics import Stall


@contextmanager
def no_thread_left() -> Iterator[None]:
    yield
    until(lambda: not any(thread.name == "generate_many" for thread in threading.enumerate()))


@pytest.mark.parametrize("as_completed", [False, True])
def test_an_error_of_the_callers_own_ends_the_calls(held_client: Client, held: Held, as_completed: bool) -> None:
    def loop() -> None:
        for _ in held_client.generate_many(["a", WAIT, WAIT], concurrency=3, as_completed=as_completed):
            until(lambda: held.waiting == 2)
            raise LoopError

    with no_thread_left(), pytest.raises(LoopError):
        loop()
    until(lambda: held.waiting == 0)


def interrupted(work: Callable[[], Any], at: Callable[[], bool]) -> float:
    """Ctrl-C while it waits; seconds until it ended by that."""
    began: list[float] = []

    def interrupt() -> None:
        until(at)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        work()
    ended = time.monotonic()
    thread.join()
    return ended - began[0]


def test_ctrl_c_ends_the_calls(held_client: Client, held: Held) -> None:
    with no_thread_left():
        interrupted(lambda: list(held_client.generate_many([WAIT] * 4, concurrency=2)), lambda: held.waiting == 2)
    until(lambda: held.waiting == 0)
    assert held_client.generate("last").text == "last"


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_ctrl_c_ends_calls_that_reached_nobody_yet(held_address: str, protocol: str) -> None:
    """The first connection stands still, and what is asked of the server has no deadline."""
    with (
        WeakNetwork(held_address, Faults((Stall(),), (Stall(),))) as network,
        no_thread_left(),
        Client(f"{protocol}://{network.address}") as client,
    ):
        many = client.generate_many(["a"] * 3, concurrency=2)
        late = interrupted(lambda: list(many), lambda: network.connections > 0)
    assert late < END_SECONDS + 3


EXITS = """
import sys, threading
from inflight_client import Client

def source():
    yield "tea"
    threading.Event().wait()

client = Client(sys.argv[1])
answers = client.generate_many(source())
print(next(answers).text, flush=True)
"""


def test_a_source_that_waits_for_ever_keeps_no_program_from_ending(held_address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITS, held_address], capture_output=True, text=True, timeout=2 * SOON, check=True
    )
    assert (done.stdout, done.stderr) == ("tea\n", "")

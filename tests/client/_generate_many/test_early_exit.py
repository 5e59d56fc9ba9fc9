"""Many prompts that are left in the middle: by an error, by Ctrl-C, by the end of the program."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from inflight_client import Client
from inflight_client.result_order import CLOSE_TIMEOUT

from tests.client.support.gated_server import SOON, WAIT, AnswerGate, GateLoopError
from tests.client.support.interrupt_runner import interruptible
from tests.fixtures.waiting import wait_until
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import StallAt


@contextmanager
def no_thread_left() -> Iterator[None]:
    yield
    wait_until(lambda: not any(thread.name == "inflight_client call" for thread in threading.enumerate()))


@pytest.mark.parametrize("as_completed", [False, True])
def test_an_error_of_the_callers_own_ends_the_calls(held_client: Client, held: AnswerGate, as_completed: bool) -> None:
    def loop() -> None:
        for _ in held_client.generate_many(["a", WAIT, WAIT], concurrency=3, as_completed=as_completed):
            wait_until(lambda: held.waiting == 2)
            raise GateLoopError

    with no_thread_left(), pytest.raises(GateLoopError):
        loop()
    wait_until(lambda: held.waiting == 0)


def test_ctrl_c_ends_the_calls(held: AnswerGate, held_address: str) -> None:
    with interruptible("many", held_address) as program:
        wait_until(lambda: held.waiting == 2)
        program.interrupt()
        assert program.said()["interrupted"]
        wait_until(lambda: held.waiting == 0)
        program.go_on("last")
        assert program.said() == {"text": "last"}


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_ctrl_c_ends_calls_that_reached_nobody_yet(held_address: str, protocol: str) -> None:
    """The first connection stalls, and what is asked of the server has no deadline."""
    with (
        FaultyNetwork(held_address, Faults((StallAt(),), (StallAt(),))) as network,
        interruptible("many", f"{protocol}://{network.address}") as program,
    ):
        wait_until(lambda: network.connections > 0)
        moment = program.interrupt()
        found = program.said()
    assert found["interrupted"]
    assert found["ended"] - moment < CLOSE_TIMEOUT + 3


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

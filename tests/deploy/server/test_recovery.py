"""Kill each process of a server with streams open: the streams end, and the server comes back by itself.

The client's test_restarts kills tritonserver too, while all ways of calling it wait for its return.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from inflight_client import Client

from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY
from inflight.deploy.server.server import Server, ServerSettings
from tests.fixtures.engines import TinyEngine
from tests.fixtures.open_streams import TIMEOUT, open_streams, still_running
from tests.fixtures.server import ENDLESS, paced
from tests.fixtures.waiting import wait_until

ENGINE = "the engine's process of tensorrt_llm"
GUARD = "the guard"
FAILURES = 3
STARVED_SECONDS = 2.5
"""After one to two, Triton's python backend takes a stub for dead unless something says that it is not."""


class RecoveringServer:
    """A server whose processes may be killed: it is shared, and comes back."""

    def __init__(self, engine: Path) -> None:
        self.reports: list[str] = []
        self.server = Server(engine, paced(), ServerSettings(max_start_failures=FAILURES), self.reports.append)

    def guard(self) -> psutil.Process:
        wait_until(lambda: self.server.ready)  # it may have died once more
        return psutil.Process(psutil.Process(self.server.instance.process.pid).ppid())

    def kill(self, *names: str) -> list[int]:
        pids = {GUARD: self.guard().pid, **{member.name: member.pid for member in self.server.instance.process_tree}}
        for name in names:
            with suppress(ProcessLookupError):  # the server ends with its guard
                os.kill(pids[name], signal.SIGKILL)
        return [pids[name] for name in names]

    def answers_again(self, restarts: int) -> None:
        wait_until(lambda: self.server.restarts == restarts and self.server.ready)
        with Client(self.server.grpc_address) as client:
            assert client.generate("again", max_tokens=3).output_tokens == 3

    def regions(self) -> set[Path]:
        return set(SHARED_MEMORY_DIRECTORY.glob(f"{self.server.run_directory.shm_prefix}*"))


@pytest.fixture(scope="module")
def mortal(tiny_engine: TinyEngine) -> Iterator[RecoveringServer]:
    mortal = RecoveringServer(tiny_engine("llama"))
    with pytest.MonkeyPatch.context() as patch, mortal.server as server:
        patch.setattr("inflight.deploy.server.server._MAX_RESTART_WAIT", 0.1)
        yield mortal
        family = mortal.guard().children(recursive=True)
        shm_prefix = server.run_directory.shm_prefix
    assert still_running(family) == []
    assert not list(SHARED_MEMORY_DIRECTORY.glob(f"{shm_prefix}*"))


@pytest.mark.parametrize("model", ["preprocessing", "postprocessing", "tensorrt_llm"])
def test_a_model_that_gets_no_processor_for_seconds_goes_on_where_it_was(mortal: RecoveringServer, model: str) -> None:
    family, restarts = mortal.server.instance.process_tree, mortal.server.restarts
    [stub] = [psutil.Process(member.pid) for member in family if member.name == f"the stub of {model}"]
    with Client(mortal.server.grpc_address, "ensemble") as client, ThreadPoolExecutor() as pool:
        stub.suspend()
        answer = pool.submit(client.generate, "hold", max_tokens=3)
        time.sleep(STARVED_SECONDS)
        stub.resume()
        assert answer.result(TIMEOUT).output_tokens == 3
        assert client.generate("again", max_tokens=3).output_tokens == 3
    assert (mortal.server.instance.process_tree, mortal.server.restarts) == (family, restarts)


@pytest.mark.parametrize(
    ("victims", "codes"),
    [
        ((ENGINE,), {"engine_died"}),
        (("the stub of tensorrt_llm",), {"engine_died", "server_gone"}),
        # The connection breaks, unless the next chunk comes before the server is stopped, with no model to decode it.
        pytest.param(("the stub of postprocessing",), {"server_gone", "model_not_ready"}, marks=pytest.mark.slow),
        pytest.param(("the stub of preprocessing",), {"server_gone"}, marks=pytest.mark.slow),
        (("tritonserver",), {"server_gone"}),
        ((GUARD,), {"server_gone"}),
        pytest.param((GUARD, "tritonserver"), {"server_gone"}, marks=pytest.mark.slow),
    ],
)
def test_a_killed_process_ends_all_streams_and_the_server_comes_back(
    mortal: RecoveringServer, victims: tuple[str, ...], codes: set[str]
) -> None:
    server, restarts = mortal.server, mortal.server.restarts
    streams = open_streams(server.grpc_address, count=8, max_tokens=ENDLESS)
    family, regions = mortal.guard().children(recursive=True), mortal.regions()
    assert regions
    before = (server.ports, server.http_address)
    pids = mortal.kill(*victims)

    for stream in streams:
        assert stream.finished.wait(TIMEOUT)
        assert stream.error is not None, f"ended as if whole: {stream}"
        assert stream.error.code in codes, "\n".join([str(stream.error), *mortal.reports])
    assert still_running(family) == []
    mortal.answers_again(restarts + 1)
    assert (server.ports, server.http_address) == before
    if GUARD not in victims:
        victim = f"{victims[0]} (pid {pids[0]})"
        assert any(victim in line and "started again" in line for line in mortal.reports), mortal.reports
    assert not regions & mortal.regions()


def test_a_server_that_has_generated_is_started_again_however_often_it_dies_or_its_starts_crash(
    mortal: RecoveringServer,
) -> None:
    restarts, killed = mortal.server.restarts, set(mortal.kill("tritonserver"))
    program = str(mortal.server.run_directory.path)
    while len(killed) < FAILURES + 2:
        starts = [child for child in psutil.Process().children(recursive=True) if child.pid not in killed]
        for start in starts:
            with suppress(psutil.NoSuchProcess):
                if start.name() == "tritonserver" and program in " ".join(start.cmdline()):
                    start.kill()
                    killed.add(start.pid)
    mortal.answers_again(restarts + 1)


def test_a_killed_engine_cuts_what_it_ran_and_nothing_else(tiny_engine: TinyEngine) -> None:
    """The real engine may be done with some streams before it is killed, or with all: those must be whole."""
    with Server(tiny_engine("llama")) as server:
        streams = open_streams(server.grpc_address, count=8, max_tokens=1900)
        os.kill(next(member.pid for member in server.instance.process_tree if member.name == ENGINE), signal.SIGKILL)
        for stream in streams:
            assert stream.finished.wait(TIMEOUT)
        cut = [stream for stream in streams if stream.error is not None]
        assert {stream.error.code for stream in cut if stream.error} <= {"engine_died"}
        assert all(stream.completed for stream in streams if stream not in cut)
        wait_until(lambda: server.restarts == 1 and server.ready)
        line = re.search(r"died \(signal 9\); (\d+) requests ended with an error", server.run_directory.log.read_text())
        assert line is not None
        assert len(cut) == int(line[1])

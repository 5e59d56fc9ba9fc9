"""Kill each process of a server with streams open: the streams end, and the server comes back by itself.

That of a stub is slow here; the client's test_restarts kills one too.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from inflight_client import Client

from inflight.deploy.process import Member
from inflight.deploy.run_directory import SHARED_MEMORY
from inflight.deploy.server import Server
from tests.deploy.streams import SOON, open_streams, wait_until
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import ENDLESS, paced

ENGINE = "the engine's process of tensorrt_llm"


@pytest.mark.parametrize(
    ("victim", "codes"),
    [
        (ENGINE, {"engine_died"}),
        pytest.param("the stub of tensorrt_llm", {"engine_died", "server_gone"}, marks=pytest.mark.slow),
        # The connection breaks, unless the next chunk comes before the server is stopped and finds nobody to decode it.
        pytest.param("the stub of postprocessing", {"server_gone", "model_not_ready"}, marks=pytest.mark.slow),
        pytest.param("the stub of preprocessing", {"server_gone"}, marks=pytest.mark.slow),
        ("tritonserver", {"server_gone"}),
    ],
)
def test_a_killed_process_ends_all_streams_and_the_server_comes_back(
    tiny_engine: TinyEngine, victim: str, codes: set[str]
) -> None:
    reports: list[str] = []
    with Server(tiny_engine("llama"), paced(), report=reports.append) as server:
        streams = open_streams(server.grpc_address, count=8, max_tokens=ENDLESS)
        before = (server.ports, server.http_address)
        member = kill(server, victim)

        for stream in streams:
            assert stream.ended.wait(SOON)
            assert stream.error is not None, f"ended as if whole: {stream}"
            assert stream.error.code in codes, "\n".join([str(stream.error), *reports])
        answers_again(server)
        assert (server.ports, server.http_address) == before
        assert any(f"{victim} (pid {member.pid})" in line and "started again" in line for line in reports), reports
        family = [member.pid for member in server.life.family]
        shm_prefix = server.run.shm_prefix
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    assert not list(SHARED_MEMORY.glob(f"{shm_prefix}*"))


def test_a_killed_engine_cuts_what_it_ran_and_nothing_else(tiny_engine: TinyEngine) -> None:
    """The real engine may be done with some streams before it is killed, or with all: those must be whole."""
    with Server(tiny_engine("llama")) as server:
        streams = open_streams(server.grpc_address, count=32, max_tokens=1900)
        kill(server, ENGINE)
        for stream in streams:
            assert stream.ended.wait(SOON)
        cut = [stream for stream in streams if stream.error is not None]
        assert {stream.error.code for stream in cut if stream.error} <= {"engine_died"}
        assert all(stream.whole for stream in streams if stream not in cut)
        answers_again(server)
        said = re.search(r"died \(signal 9\); (\d+) requests ended with an error", server.run.log.read_text())
        assert said is not None
        assert len(cut) == int(said[1])


def kill(server: Server, name: str) -> Member:
    member = next(member for member in server.life.family if member.name == name)
    os.kill(member.pid, signal.SIGKILL)
    return member


def answers_again(server: Server) -> None:
    wait_until(lambda: server.restarts == 1 and server.ready)
    assert server.life.probe.ready()
    with Client(server.grpc_address) as client:
        assert client.generate("again", max_tokens=3).output_tokens == 3

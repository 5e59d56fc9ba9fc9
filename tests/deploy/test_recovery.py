"""Kill each process of a server with streams open: the streams end, and the server comes back by itself."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from inflight_client import Client

from inflight.deploy.run_directory import SHARED_MEMORY
from inflight.deploy.server import Server
from tests.deploy.streams import open_streams
from tests.fixtures.engines import TinyEngine


@pytest.mark.parametrize(
    ("victim", "codes"),
    [
        ("the engine's process of tensorrt_llm", {"engine_died"}),
        ("the stub of tensorrt_llm", {"engine_died", "server_gone"}),
        ("the stub of postprocessing", {"server_gone"}),
        ("the stub of preprocessing", {"server_gone"}),
        ("tritonserver", {"server_gone"}),
    ],
)
def test_a_killed_process_ends_all_streams_and_the_server_comes_back(
    tiny_engine: TinyEngine, victim: str, codes: set[str]
) -> None:
    reports: list[str] = []
    with Server(tiny_engine("llama"), report=reports.append) as server:
        streams = open_streams(server.grpc_address, count=8, max_tokens=1900)
        member = next(member for member in server.life.family if member.name == victim)
        before = (server.ports, server.http_address)
        os.kill(member.pid, signal.SIGKILL)
        killed = time.monotonic()

        for stream in streams:
            assert stream.ended.wait(10)
            assert stream.error is not None, f"ended as if whole: {stream}"
            assert stream.error.code in codes, "\n".join([str(stream.error), *reports])
            assert stream.ended_at - killed < 10
        while answers(server):  # it takes a moment to be noticed
            assert time.monotonic() - killed < 2
        while not answers(server):
            assert time.monotonic() - killed < 30
            time.sleep(0.05)
        with Client(server.grpc_address) as client:
            assert client.generate("again", max_tokens=3).output_tokens == 3
        assert (server.ports, server.http_address) == before
        assert any(f"{victim} (pid {member.pid})" in line and "started again" in line for line in reports), reports
        family = [member.pid for member in server.life.family]
        shm_prefix = server.run.shm_prefix
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    assert not list(SHARED_MEMORY.glob(f"{shm_prefix}*"))


def answers(server: Server) -> bool:
    return server.ready and server.life.probe.ready()

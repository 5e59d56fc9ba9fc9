from __future__ import annotations

import os
import signal
import time

from inflight_client import Client

from inflight.deploy.pulse import Patience
from inflight.deploy.server import Server, ServerSettings
from tests.deploy.streams import open_streams
from tests.fixtures.engines import TinyEngine

SHORT = Patience(look_every=0.2, ask_after=0.6, answer_within=1.5)


def test_a_server_that_generates_nothing_though_it_is_ready_is_started_again(tiny_engine: TinyEngine) -> None:
    reports: list[str] = []
    with Server(tiny_engine("llama"), settings=ServerSettings(patience=SHORT), report=reports.append) as server:
        engine = next(member for member in server.life.family if member.name.startswith("the engine's process"))
        os.kill(engine.pid, signal.SIGSTOP)  # it lives, the server says that it is ready, and nothing comes
        deadline = time.monotonic() + 30
        while not server.restarts:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert any("has generated nothing for" in line for line in reports), reports
        assert not engine.alive()
        with Client(server.grpc_address) as client:
            assert client.generate("again", max_tokens=3).output_tokens == 3


def test_neither_a_busy_server_nor_an_idle_one_is_taken_for_dead(tiny_engine: TinyEngine) -> None:
    with Server(tiny_engine("llama"), settings=ServerSettings(patience=SHORT)) as server:
        for stream in open_streams(server.grpc_address, count=8, max_tokens=1900):
            assert stream.ended.wait(60)
            assert stream.error is None
        time.sleep(4)  # longer than its patience, with nothing to do but the watcher's own question
        assert server.restarts == 0
        assert server.ready

from __future__ import annotations

import os
import signal
import time

from inflight_client import Client

from inflight.deploy.server.liveness import LivenessTimeouts
from inflight.deploy.server.process import ENGINE_PROCESS
from inflight.deploy.server.server import Server, ServerSettings
from tests.fixtures.engines import TinyEngine
from tests.fixtures.open_streams import TIMEOUT, open_streams
from tests.fixtures.server import STEP_SECONDS, paced
from tests.fixtures.waiting import wait_until

SHORT = LivenessTimeouts(check_interval=0.2, idle_before_probe=0.6, probe_timeout=1.5)
# A healthy server answers in a hundredth of this, so a machine that is busy with other things doesn't matter.
ENOUGH = LivenessTimeouts(check_interval=0.2, idle_before_probe=0.6, probe_timeout=2.5)
SECONDS = ENOUGH.idle_before_probe + ENOUGH.probe_timeout + 1


def test_a_server_that_generates_nothing_though_it_is_ready_is_started_again(tiny_engine: TinyEngine) -> None:
    reports: list[str] = []
    with Server(tiny_engine("llama"), paced(), ServerSettings(liveness=SHORT), reports.append) as server:
        engine = next(member for member in server.instance.process_tree if member.name.startswith(ENGINE_PROCESS))
        os.kill(engine.pid, signal.SIGSTOP)  # it runs, the server says that it is ready, and nothing comes
        wait_until(lambda: server.restarts > 0)
        assert any("has generated nothing for" in line for line in reports), reports
        assert not engine.is_running()
        with Client(server.grpc_address) as client:
            assert client.generate("again", max_tokens=3).output_tokens == 3


def test_neither_a_busy_server_nor_an_idle_one_is_taken_for_dead(tiny_engine: TinyEngine) -> None:
    with Server(tiny_engine("llama"), paced(), ServerSettings(liveness=ENOUGH)) as server:
        for stream in open_streams(server.grpc_address, count=8, max_tokens=round(SECONDS / STEP_SECONDS)):
            assert stream.finished.wait(TIMEOUT)
            assert stream.completed
        # Now there is nothing to do but the watcher's own questions.
        idle_since, before = time.monotonic(), server.instance.probe.answer_count("generate")
        assert before is not None
        wait_until(
            lambda: (
                time.monotonic() - idle_since > SECONDS
                and (server.instance.probe.answer_count("generate") or 0) > before
            )
        )
        assert server.restarts == 0
        assert server.ready

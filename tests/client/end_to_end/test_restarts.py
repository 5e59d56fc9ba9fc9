"""The server is killed while every way's stream is open, and started again on the same ports, while all call again."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from inflight_client import NO_RETRY, DeadlineExceeded, InflightError, ModelNotReady, ServerGone

from inflight.deploy.server.instance import ServerInstance
from inflight.deploy.server.launcher import ServerLauncher
from inflight.deploy.server.server import Server
from tests.client.support.client_variants import CLIENT_VARIANTS, ClientVariant
from tests.client.support.expected_answers import LONG, PROMPT
from tests.client.support.leak_checks import idle, nothing_left
from tests.fixtures.engines import TinyEngine
from tests.fixtures.open_streams import TIMEOUT
from tests.fixtures.server import paced
from tests.fixtures.waiting import wait_until
from tests.serving.metrics_page import page_when

RESTARTED = 4 * TIMEOUT
"""Seconds that a call may take in which the server is started again, on a slow and busy machine."""


class Visit:
    """One way's calls around the server's death, in a separate thread."""

    def __init__(self, way: ClientVariant, server: Server, victim: str) -> None:
        self.way = way
        self.server = server
        self.victim = victim
        self.opened = threading.Event()
        self.looked = threading.Event()
        """Set once it has seen the server away; until then that does not come back."""

    def run(self) -> tuple[type[InflightError], str]:
        """What ended the stream that was open. Everything called behind it must succeed."""
        with self.way.client(self.server) as caller:
            stream = caller.stream(PROMPT, max_tokens=LONG)
            next(stream)
            self.opened.set()
            with pytest.raises(InflightError) as caught:
                list(stream)
            assert (PROMPT * LONG).startswith(stream.text)
            try:
                if self.victim == "tritonserver":
                    self._is_away()
            finally:
                self.looked.set()
            answer = caller.generate(PROMPT, max_tokens=5, timeout=RESTARTED)
            assert (answer.text, answer.output_tokens) == ("hello", 5)
            assert answer.timings.attempts > 1 or self.victim != "tritonserver"
            assert "".join(delta.text for delta in caller.stream(PROMPT, max_tokens=5, timeout=RESTARTED)) == "hello"
            many = caller.generate_many([PROMPT] * 4, max_tokens=5, concurrency=2, timeout=RESTARTED)
            assert [each.text for each in many] == ["hello"] * 4
            wait_until(lambda: self.server.restarts == 1 and self.server.ready)
            assert caller.health()
            assert caller.models()
            assert caller.metrics().families
            caller.cancel("nobody's")
            return type(caught.value), caught.value.code

    def _is_away(self) -> None:
        """A caller that does not wait for the server to come back gets a typed error or a message that it is away."""
        with self.way.client(self.server, retry=NO_RETRY) as impatient:
            with pytest.raises((ServerGone, ModelNotReady)):
                impatient.generate(PROMPT, max_tokens=5)
            with pytest.raises((ServerGone, ModelNotReady, DeadlineExceeded)):
                impatient.generate(PROMPT, max_tokens=5, timeout=0.05)
            health = impatient.health(timeout=TIMEOUT)
            assert not health
            assert health.reason
            for question in (impatient.models, impatient.metrics, lambda **_: impatient.cancel("nobody's")):
                with pytest.raises((ServerGone, ModelNotReady)):
                    question(timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("victim", "codes"),
    [
        ("tritonserver", {"server_gone"}),
        pytest.param("the engine's process of tensorrt_llm", {"engine_died"}, marks=pytest.mark.slow),
        # Triton tells some of the streams why they end; those that it doesn't end with the server.
        pytest.param(
            *("the stub of tensorrt_llm", {"engine_died", "server_gone", "model_not_ready"}), marks=pytest.mark.slow
        ),
        pytest.param("the stub of postprocessing", {"server_gone", "model_not_ready"}, marks=pytest.mark.slow),
    ],
)
def test_streams_end_with_the_reason_and_calls_wait_until_the_server_is_back(
    tiny_engine: TinyEngine, victim: str, codes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with nothing_left(), Server(tiny_engine("llama"), paced(), on_message=lambda line: None) as server:
        visits = [Visit(way, server, victim) for way in CLIENT_VARIANTS]
        begin = ServerLauncher.start

        def begin_when_all_have_looked(starter: ServerLauncher, *arguments: Any) -> ServerInstance:
            assert all(visit.looked.wait(RESTARTED) for visit in visits)
            return begin(starter, *arguments)

        monkeypatch.setattr(ServerLauncher, "start", begin_when_all_have_looked)
        with ThreadPoolExecutor(len(visits)) as threads:
            running = [threads.submit(visit.run) for visit in visits]
            for visit in visits:
                assert visit.opened.wait(TIMEOUT)
            os.kill(
                next(member.pid for member in server.instance.process_tree if member.name == victim), signal.SIGKILL
            )
            ended = [each.result() for each in running]
        assert {code for _, code in ended} <= codes, ended
        assert {kind for kind, _ in ended} <= {ServerGone, ModelNotReady}
        page_when(server, idle)

"""What looks for leftovers finds them; else the tests that use it would prove nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from inflight.deploy.server.server import Server
from tests.client.support import leak_checks
from tests.client.support.leak_checks import nothing_left, run
from tests.serving.metrics_page import page_when

Hold = Callable[[], Callable[[], object]]
"""Takes hold of something; what it returns lets go of it."""


def a_thread() -> Callable[[], object]:
    over = threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    return over.set


def a_socket() -> Callable[[], object]:
    return socket.socket().close


@pytest.mark.parametrize("hold", [a_thread, a_socket])
def test_what_stays_is_found_and_what_goes_is_waited_for(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_left():
        threading.Timer(0.1, hold()).start()
    monkeypatch.setattr(leak_checks, "SOON", 0.2)
    held: list[Callable[[], object]] = []
    with pytest.raises(AssertionError, match="this is left behind"), nothing_left():
        held.append(hold())
    held.pop()()


def test_what_comes_later_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Callable[[], object]] = []

    def replace(_: float) -> None:
        """Between two looks a socket comes, and the one before it goes."""
        held.append(a_socket())
        if len(held) > 1:
            held.pop(0)()

    monkeypatch.setattr(leak_checks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=replace))
    with nothing_left():
        replace(0)
    held.pop()()


def test_what_was_there_before_may_stay() -> None:
    let_go = a_thread()
    with nothing_left():
        pass
    let_go()


def test_a_task_that_runs_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leak_checks, "SOON", 0.2)

    async def forgetful() -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.sleep(30))

    with pytest.raises(AssertionError, match="these tasks run on"):
        run(forgetful)


def test_a_request_that_runs_on_the_server_is_found(paced_server: Server) -> None:
    url = f"http://{paced_server.http_address}/v2/models/ensemble/generate_stream"
    request = urllib.request.Request(url, b'{"text_input": "hello", "max_tokens": 3000, "stream": true}')
    with urllib.request.urlopen(request) as answer:
        answer.readline()
        page = page_when(paced_server, lambda page: page.requests["active"] == 1)
        assert not leak_checks.idle(page)
    page_when(paced_server, leak_checks.idle)

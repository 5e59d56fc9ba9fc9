"""Tokens that something on the way holds back and lets go together make no server look faster than it is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from inflight.deploy.server.server import Server
from loadtests.plan import Arrivals, LoadPlan
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.server import STEP_SECONDS
from tests.loadtests.truth.run_load import LoadRun, run_together

_EVENT = b"data:"
_END = b"\r\n0\r\n\r\n"


@contextmanager
def bunching_proxy(server: str, events: int) -> Iterator[str]:
    """The address of a proxy for `server` (HOST:PORT) that passes streamed events on so many at a time."""
    host, _, port = server.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = [listener]

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            backend = socket.create_connection((host, int(port)))
            open_ones.extend((client, backend))
            threading.Thread(target=_pass, args=(client, backend, 0), daemon=True).start()
            threading.Thread(target=_pass, args=(backend, client, events), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for one in open_ones:
            one.close()


def _pass(source: socket.socket, sink: socket.socket, events: int) -> None:
    held = b""
    try:
        while data := source.recv(65536):
            held += data
            if not 0 < held.count(_EVENT) < events or held.endswith(_END):
                sink.sendall(held)
                held = b""
        sink.sendall(held)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


TOGETHER = 10
STEP = f"{STEP_SECONDS / 2 * 1e3:g}ms"
"""Half as long as the server takes for a token."""


@pytest.fixture(scope="module")
def runs(paced_server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadRun, LoadRun]:
    """The same load straight to a server, and through a proxy that holds ten events back."""
    with bunching_proxy(paced_server.http_address, TOGETHER) as proxy:
        plans = [
            LoadPlan(
                server=f"http://{address}",
                metrics_url=f"http://{paced_server.metrics_address}/metrics",
                workload=WorkloadSpec(input_tokens="6", output_tokens="40"),
                arrivals=Arrivals(kind="users", profile="2"),
                seconds=4.0,
                slo=(f"p75 itl <= {STEP}", "p99 itl <= 60s", "p99 tpot <= 60s"),
            )
            for address in (paced_server.http_address, proxy)
        ]
        straight, held = run_together(plans, tmp_path_factory.mktemp("runs"))
    return straight, held


def test_tokens_in_bunches_are_told_and_no_bound_is_kept_by_them(runs: tuple[LoadRun, LoadRun]) -> None:
    straight, held = runs
    requests = held.summary.requests
    assert requests.completed == requests.due, requests
    assert requests.due > 2, requests
    here, there = (run.summary.latencies["itl"].p75 for run in (held, straight))
    assert here < there / 2, "by its gaps alone the worse network looks faster"
    about_bunches, against_server = held.summary.validity.notes
    assert "came in bunches" in about_bunches
    assert "in the server" in against_server
    verdicts = [bound.verdict for bound in held.summary.slo]
    assert verdicts == ["not evaluated", "met", "met"], "none of a reader's pauses took a minute"


def test_tokens_that_come_one_by_one_are_judged(runs: tuple[LoadRun, LoadRun]) -> None:
    straight, _ = runs
    assert [bound.verdict for bound in straight.summary.slo] == ["missed", "met", "met"]

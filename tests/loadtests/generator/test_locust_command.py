"""`locust -f loadtests/locustfile.py`, as a user of Locust calls it."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.server.server import Server
from loadtests.arrivals.schedule import due_times
from loadtests.record import RequestOutcome
from loadtests.report.write_reports import write_run_report
from loadtests.run_directory import RunDirectory
from tests.fixtures.engines import ROOT
from tests.fixtures.load_generator import TIMEOUT, running_generator
from tests.fixtures.load_runs import read_records
from tests.fixtures.ports import free_port
from tests.fixtures.server import STEP_SECONDS
from tests.fixtures.waiting import wait_until

TOKENS = 4
LOCUST = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtests" / "locustfile.py")]
SHORT = ["--input-tokens", "6", "--output-tokens", str(TOKENS)]
ENTRIES = {"E2E", "TTFT", "ITL", "TPOT", "tokens/s"}


def headless(server: Server, place: Path) -> dict[str, list[str]]:
    grpc, http = server.grpc_address, f"http://{server.http_address}"
    page = ["--metrics-url", f"http://{server.metrics_address}/metrics"]
    port = str(free_port())
    quiet = ["--headless", "--only-summary", *SHORT]
    return {
        "closed": [*quiet, "--host", grpc, "-u", "3", "-r", "3", "-t", "10s", *page, "--out", str(place / "closed")],
        "open": [*quiet, "--host", http, "--rate", "8", "-t", "6s", "--out", str(place / "open")],
        "whole": [*quiet, "--host", http, "-u", "2", "-r", "2", "-t", "10s", "GenerateUser"],
        "nobody": [*quiet, "--host", "127.0.0.1:1", "-t", "600s"],
        "wrong": [*quiet, "--host", grpc, "--slo", "p99 speed <= 1s"],
        "unfit": [*quiet, "--host", grpc, "GenerateUser"],
        "master": [
            *(*quiet, "--host", http, "-u", "4", "-r", "4", "-t", "10s", "--out", str(place / "master")),
            *("--master", "--expect-workers", "2", "--master-bind-port", port),
        ],
        "worker1": ["--worker", "--master-host", "127.0.0.1", "--master-port", port],
        "worker2": ["--worker", "--master-host", "127.0.0.1", "--master-port", port],
    }


@pytest.fixture(scope="module")
def place(paced_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All are made at the same time; each exit code is in NAME.code, and what it said in NAME.out."""
    place = tmp_path_factory.mktemp("locust")
    commands = headless(paced_server, place)
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(running_generator([*LOCUST, *arguments], place / f"{name}.out"))
            for name, arguments in commands.items()
        }
        port = commands["master"][-1]
        wait_until(lambda: answers(port), "the master")
        with pytest.raises(ConnectionRefusedError):  # but on loopback no process can become a worker
            socket.create_connection(("127.0.0.2", int(port)))
        for name, process in processes.items():
            (place / f"{name}.code").write_text(str(process.wait(TIMEOUT)))
    return place


def said(place: Path, name: str, code: int = 0) -> str:
    text = (place / f"{name}.out").read_text()
    assert (place / f"{name}.code").read_text() == str(code), text
    assert "Traceback" not in text
    return text


def rows(text: str) -> dict[str, list[str]]:
    """The first table's rows by their first word."""
    return {line.split()[0]: line.split() for line in text.partition("Response time")[0].splitlines() if line.strip()}


def test_a_closed_loop_has_an_entry_for_each_quantity_and_can_be_reported(place: Path) -> None:
    table = rows(said(place, "closed"))
    assert table.keys() >= ENTRIES
    assert table["E2E"][1:3] == ["stream", "ensemble"]
    counts = {name: int(table[name][3]) for name in ENTRIES}
    assert counts["ITL"] == (TOKENS - 1) * counts["TTFT"]
    assert counts["TTFT"] == counts["TPOT"] == counts["E2E"] == counts["tokens/s"] == int(table["Aggregated"][1])
    summary, page = write_run_report(RunDirectory(place / "closed"))
    assert page.exists()
    assert summary.requests.completed + summary.requests.unfinished == summary.requests.due
    assert summary.requests.completed == counts["E2E"]
    assert summary.server is not None


def test_an_open_loop_keeps_its_schedule(place: Path) -> None:
    said(place, "open")
    directory = RunDirectory(place / "open")
    plan, records = directory.plan(), sorted(read_records(directory), key=lambda record: record.session)
    assert (plan.arrivals.kind, plan.server[:7]) == ("rate", "http://")
    assert 0.0 < plan.seconds < 6.0  # Locust counts from its own beginning, the plan from the run's
    moments = list(due_times(plan.arrivals, plan.seed, plan.end))[: len(records)]
    assert len(records) > 3
    assert [record.due for record in records] == pytest.approx(moments, abs=1e-5)


def test_users_that_wait_for_whole_answers_have_no_first_token(place: Path) -> None:
    table = rows(said(place, "whole"))
    assert table["E2E"][1:3] == ["unary", "ensemble"]
    assert not table.keys() & {"TTFT", "ITL", "TPOT"}


def test_a_master_has_what_all_workers_told(place: Path) -> None:
    table = rows(said(place, "master"))
    for worker in ("worker1", "worker2"):
        said(place, worker)
    records = read_records(RunDirectory(place / "master"))
    assert {record.worker for record in records} == {0, 1}
    assert len({record.session for record in records}) == len(records)
    completed = sum(record.outcome is RequestOutcome.COMPLETED for record in records)
    assert completed == int(table["E2E"][3])


def test_what_can_not_be_is_told_at_once(place: Path) -> None:
    assert "no server answers at 127.0.0.1:1; check the address" in said(place, "nobody", 1)
    assert "Error: the SLO 'p99 speed <= 1s' can't be read" in said(place, "wrong", 1)
    assert "GenerateUser can't make this load at 127.0.0.1:" in said(place, "unfit", 1)


@pytest.fixture(scope="module")
def web(paced_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Locust's web page, of a command line with a secret."""
    port, out = str(free_port()), tmp_path_factory.mktemp("web") / "out"
    secret = ["--header", "authorization: Bearer SECRET"]
    command = [*LOCUST, *SHORT, "--host", paced_server.grpc_address, *secret, "--web-port", port]
    with running_generator(command, out):
        wait_until(lambda: answers(port), "the web page")
        yield f"http://127.0.0.1:{port}"


def answers(port: str) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(port))):
        return True
    return False


def ask(url: str, form: dict[str, str] | None = None) -> Any:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(url, data, timeout=TIMEOUT) as answer:
        return json.loads(answer.read())


def entries(web: str) -> dict[str, Any]:
    """Of the test that runs: Locust keeps an answer for a moment, so this may be one from before the start."""
    page = ask(f"{web}/stats/requests")
    return {entry["method"] or entry["name"]: entry for entry in page["stats"] if page["state"] == "running"}


def test_the_web_page_starts_and_stops_tests_and_shows_each_quantity(web: str) -> None:
    for round_ in range(2):  # a second test is another run
        started_ = ask(f"{web}/swarm", {"user_count": "2", "spawn_rate": "2", "output_tokens": str(TOKENS)})
        assert started_["success"], started_
        wait_until(lambda: entries(web).get("E2E", {}).get("num_requests", 0) >= 3, f"answers of test {round_}")
        found = entries(web)
        assert found.keys() >= ENTRIES | {"Aggregated"}
        assert found["E2E"]["num_failures"] == 0
        step = STEP_SECONDS * 1e3
        assert found["TTFT"]["min_response_time"] > 0
        assert found["E2E"]["min_response_time"] >= (TOKENS - 1) * step
        assert found["E2E"]["avg_response_time"] > found["TTFT"]["avg_response_time"]
        assert found["TPOT"]["avg_response_time"] >= step / 2
        assert 0 < found["tokens/s"]["avg_response_time"] <= 1e3 / step * TOKENS / (TOKENS - 1)
        assert ask(f"{web}/stop", {})["success"]
        wait_until(lambda: ask(f"{web}/stats/requests")["state"] == "stopped", "the end of the test")


def test_the_page_is_for_this_machine_and_chooses_no_server_for_a_secret_no_file_and_no_place(web: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(web.rpartition(":")[2])))
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(1.0)
        evil = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        for wrong in (
            {"host": evil},
            {"host": ""},
            {"metrics_url": f"{evil}/metrics"},
            {"header": "x: y"},
            {"prompts": "/etc/hostname"},
            {"chat_template": "/etc"},
            {"input_tokens": "trace:/etc/hostname"},
            {"out": "/tmp/elsewhere"},
            {"html_file": "/tmp/elsewhere"},
        ):
            refused = ask(f"{web}/swarm", {"user_count": "1", "spawn_rate": "1", **wrong})
            assert refused["success"] is False, wrong
            assert refused["message"].endswith("[invalid_parameter]")
        foreign = urllib.request.Request(f"{web}/swarm", b"user_count=1&spawn_rate=1", {"Origin": "http://a.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign, timeout=TIMEOUT)
        with pytest.raises(TimeoutError):
            stranger.accept()
    assert ask(f"{web}/stats/requests")["state"] != "running"
    with urllib.request.urlopen(web, timeout=TIMEOUT) as answer:
        page = answer.read().decode()
    assert "output_tokens" in page
    assert not any(name in page for name in ("SECRET", "chat_template", "metrics_url"))

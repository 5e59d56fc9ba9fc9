"""`inflight load sweep` against a server that has few places, so that an SLO truly breaks."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from loadtests.analysis.summary import Summary
from loadtests.report.write_reports import read_figures
from loadtests.run.sweep_runner import run_seed
from loadtests.run_directory import RunDirectory
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.load_generator import TIMEOUT, has_reported, running_generator
from tests.fixtures.server import STEP_SECONDS, fake_engine
from tests.fixtures.waiting import wait_until

TOKENS = 10
PLACES = 2
CAPACITY = PLACES / (TOKENS * STEP_SECONDS)
"""Answers a second at most: a step of STEP_SECONDS makes a token of each of those that have a place."""
QUEUE = 8
ERRORS = ("--slo", "error_rate <= 1%")
"""What a slow machine keeps too: two seconds at half the capacity send no more than there are places and queue."""


@pytest.fixture(scope="module")
def small_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    options = DeploymentOptions(
        max_num_sequences=PLACES, max_queue_size=QUEUE, parameters=fake_engine(step_seconds=STEP_SECONDS)
    )
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


def options(server: Server) -> tuple[str, ...]:
    page = f"http://{server.metrics_address}/metrics"
    length = ("--input-tokens", "6", "--output-tokens", str(TOKENS), "--arrivals", "constant")
    return ("--server", server.grpc_address, "--metrics-url", page, *length)


def test_the_rate_at_which_a_promise_breaks_is_found_and_can_be_judged_anew(
    small_server: Server, load: CommandRunner, tmp_path: Path
) -> None:
    # At twice the capacity at least a quarter is refused in two seconds; what can just be done lies between.
    search = ("--start", f"{CAPACITY / 2:g}", "--tolerance", "9", "--max-runs", "3", "--seconds", "2")
    done = load("sweep", *options(small_server), *search, *ERRORS, "--out", "sweep", "--json")
    assert done.code == 0, done.err
    sweep = json.loads(done.out)
    verdicts = [(step["rate"], step["met"]) for step in sweep["steps"]]
    assert verdicts[0] == (CAPACITY / 2, True)
    assert verdicts[1][0] == CAPACITY
    assert [kept for rate, kept in verdicts if rate >= CAPACITY * 2] == [False] * (verdicts[1][1] is True)
    assert CAPACITY / 2 <= sweep["highest"] <= CAPACITY
    assert sweep["highest"] < sweep["lowest_missed"] <= CAPACITY * 2
    assert sweep["unit"] == "sessions/s"
    for step in sweep["steps"]:
        run = tmp_path / "sweep" / step["run"]
        assert (run / "report.html").exists()
        assert read_figures(run / "report.json", Summary).completed_per_second <= CAPACITY * 1.05
        assert RunDirectory(run).plan().arrivals.profile == f"{step['rate']:g}"
        before = sum(other["rate"] == step["rate"] and other["run"] < step["run"] for other in sweep["steps"])
        assert RunDirectory(run).plan().seed == run_seed(0, before)
        assert step["summary"]["offered_sessions_per_second"] == pytest.approx(step["rate"])
    assert (tmp_path / "sweep" / "sweep.json").exists()

    # No first token is there in ten microseconds: judged by that, the same runs hold nowhere.
    (tmp_path / "sweep" / "report.html").unlink()
    done = load("report", "sweep", "--slo", "p50 ttft <= 0.01ms", "--price-per-hour", "2", "--json")
    assert done.code == 0, done.err
    anew = json.loads(done.out)
    assert [step["met"] for step in anew["steps"]] == [False] * 3
    assert (anew["slo"], anew["highest"], anew["converged"]) == (["p50 ttft <= 0.01ms"], None, False)
    assert anew["lowest_missed"] == CAPACITY / 2
    assert all(step["summary"]["cost"]["price_per_hour"] == 2 for step in anew["steps"])
    assert "was met at no tested rate" in (tmp_path / "sweep" / "report.html").read_text()
    for step in anew["steps"]:
        assert (
            read_figures(tmp_path / "sweep" / step["run"] / "report.json", Summary).slo[0].text == "p50 ttft <= 0.01ms"
        )
    # By what they were made with, they hold where they held.
    done = load("report", "sweep", *ERRORS)
    assert f"is met up to {sweep['highest']:g} sessions/s" in done.out


@pytest.mark.slow
def test_the_highest_number_of_users_is_as_many_as_there_are_places(
    small_server: Server, load: CommandRunner, tmp_path: Path
) -> None:
    # A request that has to wait for a place waits for a whole answer.
    slo = ("--slo", f"p50 ttft <= {TOKENS * STEP_SECONDS * 0.75 * 1e3:g}ms")
    done = load("sweep", *options(small_server), "--by", "users", "--start", "1", "--seconds", "3", *slo)
    assert done.code == 0, done.err
    assert "is met up to 2 users" in done.out or "is met up to 3 users" in done.out
    assert "missed" in done.out


@pytest.mark.slow
def test_without_a_start_a_short_run_finds_one(small_server: Server, load: CommandRunner, tmp_path: Path) -> None:
    slo = ("--slo", "p90 ttft <= 1s", "--slo", "error_rate <= 1%")
    done = load("sweep", *options(small_server), *slo, "--seconds", "5", "--max-runs", "5", "--json", "--out", "sweep")
    assert done.code == 0, done.err
    sweep = json.loads(done.out)
    assert 0.4 * CAPACITY <= sweep["steps"][0]["rate"] <= CAPACITY * 0.75
    assert 0.4 * CAPACITY <= sweep["highest"] <= CAPACITY * 1.5
    assert RunDirectory(tmp_path / "sweep" / "00-probe").plan().slo == ()


@pytest.mark.slow
def test_answers_longer_than_the_short_run_find_a_start_too(
    small_server: Server, load: CommandRunner, tmp_path: Path
) -> None:
    short = TOKENS * STEP_SECONDS / 2
    search = ("--seconds", f"{short:g}", "--max-runs", "1", "--slo", "p90 ttft <= 60s", "--json", "--out", "sweep")
    done = load("sweep", *options(small_server), *search)
    assert read_figures(tmp_path / "sweep" / "00-probe" / "report.json", Summary).completed_per_second == 0
    (step,) = json.loads(done.out)["steps"]
    assert 0.3 * CAPACITY <= step["rate"] <= CAPACITY * 0.75


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_with_what_was_found(small_server: Server, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    search = ("--start", "1", "--seconds", "3", "--slo", "p95 ttft <= 20s", "--out", str(out))
    code = "from inflight.cli import main; main()"
    command = [sys.executable, "-c", code, "load", "sweep", *options(small_server), *search]
    with running_generator(command, tmp_path / "said") as process:
        second = RunDirectory(out / "02-rate-2")
        wait_until(lambda: has_reported(second), "a record of the second run")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    said = (tmp_path / "said").read_text()
    assert "Traceback" not in said
    assert "is met up to 1 sessions/s (seen once)" in said
    sweep = json.loads((out / "sweep.json").read_text())
    assert (len(sweep["steps"]), sweep["interrupted"]) == (1, True)

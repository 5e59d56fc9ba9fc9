"""`inflight load run`, `report` and `worker` against a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from inflight.commands.load.run import exit_code
from inflight.deploy.server.server import Server
from loadtests.analysis.summary import AuditCheck, Requests, SloResult
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.run_directory import RunDirectory
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.load_generator import TIMEOUT, has_reported, running_generator
from tests.fixtures.load_runs import read_records
from tests.fixtures.load_summaries import typical_summary
from tests.fixtures.ports import free_port
from tests.fixtures.waiting import wait_until

SHORT = ("--input-tokens", "6", "--output-tokens", "4", "--drain-seconds", "10")
FILES = {
    *("plan.json", "metadata.json", "requests.jsonl", "server.jsonl", "generator.jsonl", "generator.log"),
    *("report.json", "report.html", "requests.csv", "timeline.csv"),
}
LONG = ("--seconds", "600", *SHORT)

Start = Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """The same in a separate process; what it says goes to the file `said` there."""

    def begin(
        *arguments: str, said: str = "said", under: tuple[str, ...] = ()
    ) -> AbstractContextManager[subprocess.Popen[bytes]]:
        code = "from inflight.cli import main; main()"
        return running_generator([*under, sys.executable, "-P", "-c", code, "load", *arguments], tmp_path / said)

    return begin


@pytest.mark.parametrize(
    ("requests", "code"),
    [
        (Requests(10, 9, 0, 1, 0, 0, 0), 0),
        (Requests(10, 0, 0, 10, 0, 0, 0), 1),
        (Requests(10, 0, 0, 0, 0, 0, 10), 1),
        (Requests(10, 0, 9, 0, 0, 0, 1), 1),
        (Requests(10, 0, 10, 0, 0, 0, 0), 0),
        (Requests(10, 10, 0, 0, 0, 0, 0, empty=10), 1),
        (Requests(10, 10, 0, 0, 0, 0, 0, empty=9), 0),
        (Requests(0, 0, 0, 0, 0, 0, 0), 1),
    ],
    ids=["completed", "rejected", "unfinished", "left or unfinished", "left as planned", "empty", "some empty", "none"],
)
def test_a_run_fails_where_nothing_was_completed_of_what_clients_stayed_for(requests: Requests, code: int) -> None:
    summary = replace(typical_summary(), requests=requests, slo=())
    assert exit_code(summary) == code
    assert exit_code(replace(summary, slo=(SloResult("p99 ttft <= 1s", 2.0, 1.0, False),))) == 1
    assert exit_code(replace(summary, audit=(AuditCheck("TEST09", "lengths", False),))) == 1
    assert exit_code(replace(summary, audit=(AuditCheck("TEST09", "lengths", None),))) == code


def planned(records: list[RequestRecord]) -> list[tuple[int, float, int, int | None]]:
    return sorted((record.session, record.due, record.max_tokens, record.input_tokens) for record in records)


def test_a_run_is_reported_and_can_be_made_again(
    paced_server: Server, load: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFLIGHT_LOAD_RUN_SEED", "5")
    monkeypatch.setenv("INFLIGHT_LOAD_RUN_INPUT_TOKENS", "uniform:2,20")
    address = ("--server", f"http://{paced_server.http_address}")
    page = ("--metrics-url", f"http://{paced_server.metrics_address}/metrics")
    options = (*address, *page, "--rate", "8", "--output-tokens", "4", "--seconds", "1.5")
    done = load("run", *options, "--slo", "p99 ttft < 60s", "--price-per-hour", "2", "--json", "--out", "first")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    first = RunDirectory(tmp_path / "first")
    assert {file.name for file in first.path.iterdir()} == FILES
    assert done.err.endswith("Report: first/report.html\n")
    (progress,) = [line for line in done.err.splitlines() if line.startswith("load: ")]
    assert " requests completed, p99 TTFT " in progress
    assert progress.endswith("SLO met")
    records = read_records(first)
    assert figures["requests"]["completed"] == figures["requests"]["due"] == len(records) > 3
    assert figures["slo"][0]["met"] is True
    assert figures["server"]["output_tokens"] is not None
    assert [match for match in figures["reconciliation"] if match["client"] - match["server"]] == []
    assert figures.items() <= json.loads((first.path / "report.json").read_text()).items()
    assert first.plan().seed == 5
    served = first.metadata()["served"]
    assert (served["model"], served["precision"], served["kv_cache_precision"]) == ("tiny-llama", "fp32", "f32")
    # The engine is on this machine, so prompts are made with its tokenizer; a length of 2 may be too short for it.
    assert first.plan().workload.tokenizer == served["engine_dir"]
    assert figures["tokens"]["first_input"] == pytest.approx(figures["tokens"]["first_input_requested"], rel=0.1)
    assert len({record.input_tokens for record in records}) > 2

    # The plan has the say where nothing else is given: variables of the environment are given.
    monkeypatch.delenv("INFLIGHT_LOAD_RUN_SEED")
    monkeypatch.delenv("INFLIGHT_LOAD_RUN_INPUT_TOKENS")
    broken = ("--slo", "p50 e2e <= 1ms")
    done = load("run", "--plan", "first/plan.json", *broken, "--out", "again")
    assert done.code == 1, done.err
    assert "MISSED  p50 e2e <= 1ms" in done.out
    assert "Report: again/report.html" in done.out
    again = RunDirectory(tmp_path / "again")
    assert planned(read_records(again)) == planned(records)
    plan = first.plan()
    assert again.plan() == plan.model_copy(update={"slo": ("p50 e2e <= 1ms",)})

    # A report can judge by another SLO, and one that can't be read changes nothing.
    assert load("report", "first", "--slo", "p99 speed <= 1").code == 2
    assert first.plan() == plan
    (first.path / "report.html").unlink()
    done = load("report", "first", "--slo", "p50 ttft <= 1ms", "--json")
    assert done.code == 0
    assert [bound["met"] for bound in json.loads(done.out)["slo"]] == [False]
    assert (first.path / "report.html").exists()


def test_two_servers_are_compared_and_audited_under_the_same_load(
    paced_server: Server, hurried_server: Server, load: CommandRunner, tmp_path: Path
) -> None:
    other = f"http://{hurried_server.http_address},metrics=http://{hurried_server.metrics_address}/metrics"
    options = ("--server", paced_server.grpc_address, *SHORT, "--rate", "20", "--seconds", "1", "--audit")
    done = load("run", *options, "--against", other, "--windows", "1", "--json", "--out", "test")
    found = json.loads(done.out)
    runs = [RunDirectory(tmp_path / "test" / name) for name in ("01-server", "02-against")]
    sent = [sorted((each.session, each.due, each.max_tokens) for each in read_records(run)) for run in runs]
    assert sent[0] == sent[1]
    assert [run.plan().workload.tokenizer for run in runs] == [runs[0].metadata()["served"]["engine_dir"]] * 2
    assert not any(change["regression"] for change in found["changes"])
    for side in ("server", "against"):
        checks = found["audits"][side]
        assert {check["test"] for check in checks} == {"TEST04", "TEST06", "TEST09"}
        assert [check["passed"] for check in checks if check["test"] != "TEST04"] == [True] * 5
    assert done.code == any(check["passed"] is False for check in found["audits"]["server"])
    # The report can be made again.
    (tmp_path / "test" / "report.html").unlink()
    done = load("report", "test")
    assert done.code == 0, done.err
    assert "Audit of against:" in done.out
    assert "Report: test/report.html" in done.out


@pytest.mark.parametrize(
    "wrong",
    [("--against", "b:1,speed=2"), ("--audit", "--task", "embed"), ("--audit", "--trace", "sample:azure")],
    ids=["target", "encoder", "trace"],
)
def test_what_can_not_be_compared_or_audited_is_refused_before_the_run(
    load: CommandRunner, tmp_path: Path, wrong: tuple[str, ...]
) -> None:
    done = load("run", "--server", "127.0.0.1:1", *wrong, "--out", "run")
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("Error: --a")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_reports_what_there_was_and_ends_no_other_run(
    paced_server: Server, start: Start, tmp_path: Path
) -> None:
    address = ("--server", paced_server.grpc_address)
    with (
        start("run", *address, *LONG, "--out", str(tmp_path / "long")) as long,
        start("run", *address, *SHORT, "--seconds", "3", "--out", str(tmp_path / "short"), said="short.out") as short,
    ):
        directory = RunDirectory(tmp_path / "long")
        wait_until(lambda: has_reported(directory), "a record")
        (generator,) = psutil.Process(long.pid).children()
        long.send_signal(signal.SIGINT)
        assert long.wait(TIMEOUT) == 130
        assert not generator.is_running()
        assert short.wait(TIMEOUT) == 0, (tmp_path / "short.out").read_text()
    said = (tmp_path / "said").read_text()
    assert "interrupted after" in " ".join(said.split())
    assert "Report: " in said
    assert "Traceback" not in said
    assert directory.metadata()["interrupted"] is True
    assert {record.outcome for record in read_records(directory)} <= {
        RequestOutcome.COMPLETED,
        RequestOutcome.UNFINISHED,
    }
    other = RunDirectory(tmp_path / "short")
    assert {record.outcome for record in read_records(other)} == {RequestOutcome.COMPLETED}


def test_a_generator_that_was_killed_is_told_with_how_to_report_what_there_was(
    paced_server: Server, start: Start, load: CommandRunner, tmp_path: Path
) -> None:
    address = ("--server", paced_server.grpc_address)
    with start("run", *address, *LONG, "--out", "run") as process:
        directory = RunDirectory(tmp_path / "run")
        wait_until(lambda: has_reported(directory), "a record")
        psutil.Process(process.pid).children()[0].kill()
        assert process.wait(TIMEOUT) == 1
    sentence = (tmp_path / "said").read_text().splitlines()[-1]
    assert sentence == (
        "Error: the load generator ended with exit code -9: it printed nothing; "
        "`inflight load report run` shows the results until then [load_failed]"
    )
    assert load("report", "run").code == 0


@pytest.mark.slow
def test_a_full_disk_is_one_sentence(paced_server: Server, start: Start, tmp_path: Path) -> None:
    """A limit on the size of files does to the process what a full disk does: the next write fails."""
    under = ("/bin/bash", "-c", 'ulimit -f 4; exec "$@"', "bash")
    options = ("--server", paced_server.grpc_address, *SHORT, "--rate", "40", "--seconds", "2")
    with start("run", *options, "--out", str(tmp_path / "run"), under=under) as process:
        assert process.wait(TIMEOUT) == 1
    said = (tmp_path / "said").read_text()
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("Error: ")
    assert said.endswith("[disk_full]\n")
    with start("report", str(tmp_path / "run"), under=under) as process:
        assert process.wait(TIMEOUT) == 1
    (sentence,) = (tmp_path / "said").read_text().splitlines()
    assert "File too large" in sentence
    assert sentence.startswith("Error: ")


def test_another_machine_sends_its_part(
    paced_server: Server, start: Start, poisoned: Callable[[], str], tmp_path: Path
) -> None:
    master = f"127.0.0.1:{free_port()}"
    options = ("--server", paced_server.grpc_address, *SHORT, "--rate", "8", "--seconds", "1.5")
    wanted = ("--expect-workers", "1", "--bind", master, "--out", str(tmp_path / "run"))
    with ExitStack() as stack:
        worker = stack.enter_context(start("worker", master, said="worker.out"))  # it may be there first
        run = stack.enter_context(start("run", *options, *wanted))
        assert run.wait(TIMEOUT) == 0, (tmp_path / "said").read_text()
        assert worker.wait(TIMEOUT) == 0, (tmp_path / "worker.out").read_text()
    directory = RunDirectory(tmp_path / "run")
    assert {record.worker for record in read_records(directory)} == {0, 1}
    assert directory.metadata()["workers"] == {"workers": 1, "expected": 1}
    assert (tmp_path / "worker.out").read_text() == f"Waiting for the run at {master}.\n"
    assert poisoned() == ""


def test_workers_that_do_not_come_are_told_by_their_number(
    paced_server: Server, load: CommandRunner, tmp_path: Path
) -> None:
    options = ("--server", paced_server.grpc_address, "--expect-workers", "2", "--join-timeout", "1")
    done = load("run", *options, "--out", "run")
    assert done.code == 1
    assert "of 3 workers connected" in done.err
    assert done.err.endswith("[load_failed]\n")
    assert not (tmp_path / "run").exists()

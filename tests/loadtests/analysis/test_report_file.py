from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.analysis import report_file
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep.result import Sweep, SweepStep
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.run_directory import RunDirectory
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import OPEN_LOOP, failure, record, steady_generator, write_run
from tests.loadtests.analysis.metrics_pages import PAGES


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    plan = LoadPlan(seconds=10, slo=("p99 ttft <= 1s", "error_rate <= 5%"), price_per_hour=3, arrivals=OPEN_LOOP)
    records = [*(record(i, i, ttft=0.1 / (i + 1)) for i in range(10)), failure(10, 4.5, "überladen")]
    return write_run(tmp_path / "run", records, plan, PAGES, steady_generator(10, 11))


def test_a_report_is_read_back_as_it_was(run: RunDirectory) -> None:
    summary = summarize(run)
    assert report_file.read_summary(report_file.write_summary(summary, run)) == summary


def test_the_report_of_an_empty_run_is_read_back_too(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [])
    summary = summarize(directory)
    assert report_file.read_summary(report_file.write_summary(summary, directory)) == summary


def test_scripts_find_the_figures_under_their_names(run: RunDirectory) -> None:
    found = json.loads(report_file.write_summary(summarize(run), run).read_text())
    assert found["format"] == report_file.FORMAT
    assert found["latencies"]["ttft"]["p50"] == pytest.approx(0.1 / 5.5, rel=0.02)
    assert found["slo"][0]["text"] == "p99 ttft <= 1s"
    assert found["metadata"]["plan"]["seconds"] == 10


def test_a_sweep_is_read_back_as_it_was(run: RunDirectory, tmp_path: Path) -> None:
    step = SweepStep(4.0, "rate-4", summarize(run), met=True)
    sweep = Sweep(("p99 ttft <= 1s",), (step,), 4.0, None, 0.1, converged=False)
    found = report_file.read_sweep(report_file.write_sweep(sweep, tmp_path))
    assert found == sweep
    assert found.best == step


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "report.json"),
        ("[]", "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"format": 1, "measured_seconds": NaN}', "NaN"),
        ("{}", "report"),
        ('{"format": 99}', ("99", "inflight load report")),
        ('{"format": 1}', "measured_seconds"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with raises(LoadError, "run_damaged", naming=says):
        report_file.read_summary(tmp_path / "report.json")


def test_a_report_that_is_not_there_or_can_not_be_written_is_told(run: RunDirectory) -> None:
    with raises(LoadError, "run_not_found", naming="report.json"):
        report_file.read_summary(run.path / "report.json")
    summary: Summary = summarize(run)
    (run.path / "report.json").mkdir()
    with raises(LoadError, "load_failed", naming="report.json"):
        report_file.write_summary(summary, run)

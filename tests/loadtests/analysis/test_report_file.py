from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Sweep, SweepStep
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.report.write_reports import FORMAT, read_figures, write_figures
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import OPEN_LOOP, failure, record, server_sample, steady_generator, write_run


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    plan = LoadPlan(seconds=10, slo=("p99 ttft <= 1s", "error_rate <= 5%"), price_per_hour=3, arrivals=OPEN_LOOP)
    records = [*(record(i, i, ttft=0.1 / (i + 1)) for i in range(10)), failure(10, 4.5, "überladen")]
    pages = [server_sample(0, "before", inflight_requests=1), server_sample(9, "after", inflight_requests=2)]
    return summarize(write_run(tmp_path / "run", records, plan, pages, steady_generator(10, 11)))


def test_figures_are_read_back_as_they_were_and_found_under_their_names(summary: Summary, tmp_path: Path) -> None:
    file = write_figures(summary, tmp_path / "report.json")
    assert read_figures(file, Summary) == summary
    found = json.loads(file.read_text())
    assert found["format"] == FORMAT
    assert found["latencies"]["ttft"]["p50"] == pytest.approx(0.1 / 5.5, rel=0.02)
    assert found["slo"][0]["text"] == "p99 ttft <= 1s"
    assert found["metadata"]["plan"]["seconds"] == 10
    empty = summarize(write_run(tmp_path / "empty", []))
    assert read_figures(write_figures(empty, tmp_path / "report.json"), Summary) == empty
    step = SweepStep(4.0, "rate-4", summary, met=True)
    sweep = Sweep(("p99 ttft <= 1s",), (step,), 0.1, highest=4.0)
    again = read_figures(write_figures(sweep, tmp_path / "sweep.json"), Sweep)
    assert (again, again.best) == (sweep, step)


def test_a_report_that_can_not_be_written_is_told(summary: Summary, tmp_path: Path) -> None:
    with raises(LoadError, "load_failed", naming="nowhere/report.json"):
        write_figures(summary, tmp_path / "nowhere" / "report.json")

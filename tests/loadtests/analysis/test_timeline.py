from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from loadtests.analysis.summarize import summarize
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome
from loadtests.report.write_reports import write_requests, write_timeline
from loadtests.run_directory import RunDirectory
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import failure, generator_sample, record, write_run

PAGES = [
    {
        "t": t,
        "moment": moment,
        "values": {'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"}': running},
    }
    for t, moment, running in [(-1.0, "before", 9.0), (0.5, "during", 1.0), (0.9, "during", 2.0), (50.0, "after", 9.0)]
]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    records = [
        record(0, 0.2, ttft=0.5, gaps=(1.0, 1.0), output_tokens=6),  # at 0.7, 1.7, 2.7
        record(1, 0.4, ttft=0.1, gaps=(), chunks=(0.5,), ended=0.5, output_tokens=1, worker=1),
        record(2, 1.5, ttft=0.2, gaps=(0.1,), outcome=RequestOutcome.CANCELLED, ended=3.2, sent=1.9),  # at 2.1, 2.2
        failure(3, 2.5, "engine_died"),
    ]
    generator = [generator_sample(0, 1.0, 0.3, 0.01), generator_sample(1, 1.2, 0.4, 0.02)]
    return write_run(tmp_path / "run", records, LoadPlan(warmup=1, seconds=10), PAGES, generator)


def test_a_run_second_by_second(run: RunDirectory) -> None:
    timeline = summarize(run).timeline
    expected: dict[str, list[Any]] = {
        "due": [2, 1, 1, 0],
        "sent": [2, 1, 1, 0],
        "completed": [1, 0, 1, 0],
        "cancelled": [0, 0, 0, 1],
        "failed": [0, 0, 1, 0],
        "open": [1, 2, 1, 0],
        "tokens": [3, 2, 4, 0],
        "running": [2, None, None, None],
        "waiting": [None] * 4,
        "cpu": [None, 0.7, None, None],
        "lag": [None, 0.02, None, None],
    }
    assert timeline.t == (0, 1, 2, 3)
    for name, column in expected.items():
        assert list(timeline.columns[name]) == pytest.approx(column), name
    assert list(timeline.columns["ttft_p50"]) == pytest.approx([0.3, 0.6, None, None]), "by when it was due"
    assert list(timeline.columns["itl_p99"]) == pytest.approx([None, 1.0, 0.991, None]), "by when it ended"


def test_a_record_that_ends_in_three_years_makes_no_endless_timeline(tmp_path: Path) -> None:
    plan = LoadPlan(seconds=10, drain_seconds=5)
    directory = write_run(tmp_path / "run", [record(0, 0.5), record(1, 1, ended=9e7)], plan)
    assert len(summarize(directory).timeline.t) < 100


def test_the_table_of_requests_has_every_request_and_units_in_its_names(run: RunDirectory) -> None:
    with write_requests(run).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["session"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["measured"] for row in rows] == ["0", "0", "1", "1"]
    assert [row["outcome"] for row in rows] == ["completed", "completed", "cancelled", "failed"]
    first, single, left, died = rows
    assert (first["ttft_s"], first["mean_itl_s"], first["tpot_s"], first["e2e_s"]) == ("0.5", "1.0", "0.4", "2.5")
    assert (single["worker"], single["mean_itl_s"], single["tpot_s"], single["responses"]) == ("1", "", "", "1")
    assert (left["ttft_s"], left["ttft_sent_s"], left["e2e_s"]) == ("0.6", "0.2", "")
    assert (died["error_code"], died["input_tokens"], died["ttft_s"]) == ("engine_died", "", "")


def test_the_table_of_seconds_is_the_timeline(run: RunDirectory) -> None:
    timeline = summarize(run).timeline
    with write_timeline(timeline, run).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["second"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["open_requests"] for row in rows] == ["1.0", "2.0", "1.0", "0.0"]
    assert [row["running_requests"] for row in rows] == ["2.0", "", "", ""]
    assert {"ttft_p99_s", "itl_p50_s", "tokens", "kv_use_fraction", "cpu_cores", "lag_s"} < set(rows[0])


def test_a_table_that_can_not_be_written_is_told(run: RunDirectory) -> None:
    (run.path / "requests.csv").mkdir()
    with raises(LoadError, "load_failed", naming="requests.csv"):
        write_requests(run)

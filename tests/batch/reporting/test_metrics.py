"""A job's figures for Prometheus, as its scraper and node_exporter read them."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inflight.batch.errors import BatchError
from inflight.batch.job.counts import Counts
from inflight.batch.reporting.metrics import metrics_publisher
from inflight.batch.reporting.progress import JobState
from tests.batch.reporting.sample_progress import sample_progress
from tests.fixtures.errors import raises

ROOT = Path(__file__).resolve().parents[3]


def series(page: str) -> dict[str, float]:
    """Values by name and label."""
    values = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            assert sample.labels.pop("job") == "answers"
            values[" ".join([sample.name, *sample.labels.values()])] = sample.value
    return values


def test_a_port_serves_how_the_job_stands_until_it_ends() -> None:
    messages: list[str] = []
    with metrics_publisher("answers", port=0, on_message=messages.append) as publish:
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", messages[0])
        publish(sample_progress())
        page = urllib.request.urlopen(url, timeout=30).read().decode()
        before = series(page)
        publish(sample_progress(JobState.WAITING, counts=Counts(ok=9)))
        later = series(urllib.request.urlopen(url, timeout=30).read().decode())
    assert before["inflight_batch_rows ok"] == 4990
    assert before["inflight_batch_failed_rows prompt_too_long"] == 7
    assert before["inflight_batch_tokens_total output"] == 600_000
    assert before["inflight_batch_done_ratio"] == 0.5
    assert before["inflight_batch_cost"] == 2.5
    assert before["inflight_batch_eta_seconds"] == 500
    assert (before["inflight_batch_server_up gpu1:8001"], before["inflight_batch_server_up gpu2:8001"]) == (1, 0)
    assert (before["inflight_batch_state running"], later["inflight_batch_state running"]) == (1, 0)
    assert later["inflight_batch_state waiting for a server"] == 1
    assert later["inflight_batch_rows ok"] == 9
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=30)


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            raises(BatchError, "port_in_use", naming=(f"port {port}", "--metrics-port")),
            metrics_publisher("answers", port=port),
        ):
            pytest.fail("it began")


def test_a_file_for_node_exporter_is_whole_at_each_moment_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "answers.prom"
    with metrics_publisher("answers", file=file) as publish:
        publish(sample_progress())
        assert series(file.read_text())["inflight_batch_rows ok"] == 4990
        publish(sample_progress(JobState.FINISHED))
    assert series(file.read_text())["inflight_batch_state finished"] == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cant_be_written_is_told_before_the_job_begins(tmp_path: Path) -> None:
    with (
        raises(BatchError, "output_failed", naming="--metrics-file"),
        metrics_publisher("a", file=tmp_path / "no/such.prom"),
    ):
        pytest.fail("it began")


def test_a_disk_that_fills_up_costs_the_file_and_not_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "collector"
    folder.mkdir()
    with metrics_publisher("answers", file=folder / "answers.prom") as publish:
        (folder / "answers.prom").unlink()
        folder.rmdir()
        publish(sample_progress())


def test_the_docs_have_every_metric(tmp_path: Path) -> None:
    file = tmp_path / "answers.prom"
    with metrics_publisher("answers", file=file) as publish:
        publish(sample_progress())
    shown = {line.split()[2] for line in file.read_text().splitlines() if line.startswith("# TYPE")}
    documented = set(re.findall(r"^\| `(inflight_batch_[a-z_]+)`", (ROOT / "docs/batch.md").read_text(), re.MULTILINE))
    assert documented == shown

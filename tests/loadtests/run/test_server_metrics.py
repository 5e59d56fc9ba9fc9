"""What is read of a server's metrics page during a run, also where the page is not there all the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from inflight_client.metrics import Metrics

from loadtests.plan import LoadPlan
from loadtests.run.server_metrics import ServerMetricsRecorder, samples_by_series
from loadtests.run_directory import RunDirectory
from tests.fixtures.waiting import wait_until


class FakeMetricsPage:
    """A metrics page of what this test says; None: the connection is closed without a word."""

    def __init__(self) -> None:
        self.text: str | None = "tokens 1\n"
        self.seen = 0
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = page.text
                if text is not None:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text.encode())
                page.seen += 1  # once it is said: a test that has waited for it goes on to the next page

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"


@pytest.fixture
def page() -> Iterator[FakeMetricsPage]:
    made = FakeMetricsPage()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def watch_of(url: str, place: Path) -> tuple[ServerMetricsRecorder, RunDirectory]:
    directory = RunDirectory.create(place / "run")
    return ServerMetricsRecorder(LoadPlan(metrics_url=url), directory), directory


def await_seen(page: FakeMetricsPage, more: int) -> None:
    wanted = page.seen + more
    wait_until(lambda: page.seen >= wanted)


def test_samples_are_before_during_and_after_and_gaps_are_left_out(page: FakeMetricsPage, tmp_path: Path) -> None:
    watch, directory = watch_of(page.url, tmp_path)
    watch.sample_before()
    start = time.monotonic()
    watch.start(lambda: start)
    page.text = "tokens 2\n"
    await_seen(page, 2)  # one may have been begun before
    page.text = None  # the server goes away ...
    await_seen(page, 2)
    page.text = "tokens 3\n"  # ... and comes back
    await_seen(page, 2)
    watch.stop(30.0)
    samples = directory.server_samples()
    assert [sample["moment"] for sample in samples][:: len(samples) - 1] == ["before", "after"]
    assert {sample["moment"] for sample in samples[1:-1]} == {"during"}
    assert [sample["values"]["tokens"] for sample in samples] == sorted(s["values"]["tokens"] for s in samples)
    assert {sample["values"]["tokens"] for sample in samples} == {1.0, 2.0, 3.0}
    moments = [sample["t"] for sample in samples]
    assert moments == sorted(moments)
    assert moments[0] <= 0.0 < moments[1]
    assert watch.unavailable_reason == ""


def test_the_last_sample_is_of_a_server_at_rest(page: FakeMetricsPage, tmp_path: Path) -> None:
    watch, directory = watch_of(page.url, tmp_path)
    busy = 'nv_inference_pending_request_count{model="m"} 1\n'
    page.text = busy
    watch.sample_before()
    watch.start(lambda: 0.0)
    threading.Timer(1.0, lambda: setattr(page, "text", busy.replace(" 1", " 0"))).start()
    watch.stop(60.0)
    assert list(directory.server_samples()[-1]["values"].values()) == [0.0]


def test_a_server_that_stays_busy_is_not_waited_for(page: FakeMetricsPage, tmp_path: Path) -> None:
    page.text = 'nv_inference_pending_request_count{model="m"} 1\n'
    watch, directory = watch_of(page.url, tmp_path)
    watch.sample_before()
    start = time.monotonic()
    watch.start(lambda: start)
    before = time.monotonic()
    watch.stop(0.5)
    assert time.monotonic() - before < 30
    assert [sample["moment"] for sample in directory.server_samples()] == ["before", "after"]


def test_a_look_at_the_server_that_came_late_is_none_before_the_run(page: FakeMetricsPage, tmp_path: Path) -> None:
    page.text = 'requests{model="m"} 1\n'
    watch, directory = watch_of(page.url, tmp_path)
    start = time.monotonic()
    watch.sample_before()
    watch.start(lambda: start)
    watch.stop(0.5)
    assert [sample["moment"] for sample in directory.server_samples()] == ["during", "after"]


def test_a_server_that_is_idle_only_after_the_start_has_a_sample_before_it(
    page: FakeMetricsPage, tmp_path: Path
) -> None:
    page.text = 'nv_inference_pending_request_count{model="m"} 1\n'
    watch, directory = watch_of(page.url, tmp_path)
    sampling = threading.Thread(target=watch.sample_before)
    sampling.start()
    await_seen(page, 1)
    start = time.monotonic() + 1.0  # it waits for two seconds for the server to become idle
    sampling.join()
    watch.start(lambda: start)
    watch.stop(0.5)
    assert [sample["moment"] for sample in directory.server_samples()] == ["before", "after"]


def test_a_server_without_a_page_has_no_samples_and_a_reason(tmp_path: Path) -> None:
    watch, directory = watch_of("http://127.0.0.1:1/metrics", tmp_path)
    watch.sample_before()
    watch.start(lambda: 0.0)
    watch.stop(60.0)
    assert directory.server_samples() == []
    assert "127.0.0.1:1" in watch.unavailable_reason


def test_series_are_read_as_they_stand_there() -> None:
    text = '# HELP a what {it} is 5\na{model="x y",version="1"} 3\nb 1e3\nc_bucket{le="+Inf"} 4\nd NaN\ne +Inf\n\n'
    assert samples_by_series(Metrics.parse(text)) == {'a{model="x y",version="1"}': 3.0, "b": 1000.0}

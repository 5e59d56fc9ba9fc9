"""A job's figures for Prometheus: on a loopback port, or in a file for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inflight.batch.errors import BatchError
from inflight.batch.reporting.progress import JobProgress, JobState

HOST = "127.0.0.1"
Publish = Callable[[JobProgress], None]


@contextmanager
def metrics_publisher(
    name: str,
    port: int | None = None,
    file: Path | None = None,
    on_message: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Publish]:
    """Yield a function that receives the progress of the job `name` about once a second.

    `port` 0 means any free one; `on_message` reports which. Raises BatchError `port_in_use`, and `output_failed` for a
    file that cannot be written at the start. If the disk fills up later, the metrics stop but the job continues.
    """
    registry = CollectorRegistry()
    job = JobCollector(name)
    registry.register(job)
    if file is not None:
        _write(file, registry)
    with _serving(port, registry, on_message):
        yield lambda progress: _publish(job, progress, registry, file)


class JobCollector(Collector):
    """The metrics of one job, created on request from the latest progress."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.progress: JobProgress | None = None

    def describe(self) -> Iterable[Metric]:
        return []  # otherwise registering it would collect

    def collect(self) -> Iterable[Metric]:
        if self.progress is not None:
            yield from self._rows(self.progress)
            yield from self._work(self.progress)
            yield from self._servers(self.progress)

    def _rows(self, now: JobProgress) -> Iterator[Metric]:
        counts = now.counts
        statuses = {"ok": counts.ok, "error": counts.error, "dead": counts.dead}
        yield self._gauge("rows", "Finished rows by status; a retry changes the status.", statuses, "status")
        yield self._gauge("failed_rows", "Rows without an answer, by code.", counts.codes, "code")
        if now.total is not None:
            yield self._gauge("input_rows", "Rows of the input.", {"": now.total})
        if now.fraction_done is not None:
            yield self._gauge("done_ratio", "Fraction of the job that is done, 0 to 1.", {"": now.fraction_done})
        yield self._gauge("in_flight_rows", "Rows at servers.", {"": now.in_flight})
        yield self._gauge("pending_retries", "Rows that failed and will be sent again.", {"": now.pending_retries})
        if now.queue_messages is not None:
            lag = "Messages of the queue without an acknowledgement."
            yield self._gauge("queue_messages", lag, {"": now.queue_messages})
        if now.queue_age is not None:
            age = "Seconds since the oldest message that the job holds was sent."
            yield self._gauge("queue_age_seconds", age, {"": now.queue_age})
        if now.concurrency_limit is not None:
            yield self._gauge(
                "concurrency_limit",
                "The concurrency limit, which the job adapts while it runs.",
                {"": now.concurrency_limit},
            )

    def _work(self, now: JobProgress) -> Iterator[Metric]:
        counts, present = now.counts, now.throughput.last_minute
        tokens = {"input": counts.input_tokens, "output": counts.output_tokens}
        yield self._counter("tokens", "Tokens of prompts and answers.", tokens, "kind")
        yield self._counter("texts", "Texts that were embedded, classified or scored.", {"": counts.texts})
        yield self._counter("audio_seconds", "Seconds of audio that were transcribed.", {"": counts.audio_seconds})
        yield self._counter("empty_answers", "Answered rows whose answer has no text.", {"": counts.empty})
        yield self._counter("copies", "Rows with the answer of an identical row.", {"": counts.copies})
        yield self._counter("refined_rows", "Rows with the answer of a larger model.", {"": counts.refined})
        yield self._counter("retries", "Requests that were retried.", {"": counts.retries})
        yield self._counter("running_seconds", "Total time of all runs of the job.", {"": counts.seconds})
        yield self._counter("runs", "Number of times the job was started or resumed.", {"": counts.runs})
        yield self._gauge("rows_per_second", "Rows per second over the last minute.", {"": present.rows})
        rates = {"input": present.input_tokens, "output": present.output_tokens}
        yield self._gauge("tokens_per_second", "Tokens per second over the last minute.", rates, "kind")
        if now.throughput.eta is not None:
            yield self._gauge("eta_seconds", "Time until all rows are done.", {"": now.throughput.eta})
        if now.cost is not None:
            yield self._gauge("cost", "Cost so far, in the currency of the price.", {"": now.cost.spent})
        seen = "When the job last updated its progress, in seconds since 1970."
        yield self._gauge("last_update_timestamp_seconds", seen, {"": now.timestamp})

    def _servers(self, now: JobProgress) -> Iterator[Metric]:
        states = {str(state): float(state is now.state) for state in JobState}
        yield self._gauge("state", "1 for the current state of the job.", states, "state")
        up = {server.name: float(server.up) for server in now.servers}
        yield self._gauge("server_up", "Whether a server answers.", up, "server")
        flight = {server.name: server.in_flight for server in now.servers}
        yield self._gauge("server_in_flight_rows", "Rows at a server.", flight, "server")

    def _filled(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        help_text: str,
        values: Mapping[str, float],
        label: str = "",
    ) -> Metric:
        family = kind(f"inflight_batch_{name}", help_text, labels=["job", label] if label else ["job"])
        for key, value in values.items():
            family.add_metric([self._name, key] if label else [self._name], value)
        return family

    _gauge = partialmethod(_filled, GaugeMetricFamily)
    _counter = partialmethod(_filled, CounterMetricFamily)


def _publish(job: JobCollector, progress: JobProgress, registry: CollectorRegistry, file: Path | None) -> None:
    job.progress = progress
    if file is not None:
        try:
            _write(file, registry)
        except BatchError:
            pass  # the file's own time shows its age


def _write(file: Path, registry: CollectorRegistry) -> None:
    try:
        write_to_textfile(str(file), registry)
    except OSError as error:
        raise BatchError(
            f"the metrics can't be written to {file}: {error.strerror}; give --metrics-file another path",
            "output_failed",
        ) from error


@contextmanager
def _serving(port: int | None, registry: CollectorRegistry, on_message: Callable[[str], None]) -> Iterator[None]:
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, addr=HOST, registry=registry)
    except OSError as error:
        raise BatchError(
            f"the metrics can't be served on port {port}: {error.strerror}; choose another --metrics-port, or 0 for any"
            " free one",
            "port_in_use",
        ) from error
    try:
        on_message(f"Metrics: http://{HOST}:{server.server_port}/metrics")
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

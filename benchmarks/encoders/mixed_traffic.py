"""Queries beside a bulk job: single short texts of a higher priority at 5 per second, while clients with 256 texts a
call fill the queue.

First the queries alone; then rounds of the bulk job alone and with queries. The time of a micro-batch is the server's
own mean while both run. The age bound is `max_wait_ms`.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from inflight_client import Client

from benchmarks.encoders.minilm import minilm_engine
from benchmarks.encoders.server import EncoderMetrics, embedding_server
from benchmarks.encoders.texts import TextMaker
from benchmarks.figures import Figure, out_option, report
from inflight.deploy.repository.options import EncoderOptions
from inflight.deploy.server.server import Server

QUERIES_PER_SECOND = 5.0
QUERY_TOKENS = 12
QUERY_PRIORITY = 10
BULK_CLIENTS = 2
BULK_TEXTS = 256
MAX_WAIT_SECONDS = 10
"""More than the bulk texts in flight take in order; a bucket of the queue time's histogram."""


@dataclass(frozen=True)
class Round:
    """Bulk texts per second, the seconds of each query, and the server's figures."""

    texts_per_second: float
    queries: list[float]
    batch_seconds: float
    overdue: float
    """Micro-batches of bulk texts of which one had waited longer than the age bound."""


@click.command(help=__doc__)
@click.option("--rounds", default=2, show_default=True)
@click.option("--seconds", default=30.0, show_default=True, help="Of each part of a round.")
@out_option("encoders_mixed_traffic")
def main(rounds: int, seconds: float, out: Path) -> None:
    engine = minilm_engine()
    options = EncoderOptions(max_wait_ms=MAX_WAIT_SECONDS * 1000)
    with embedding_server(engine, options) as server:
        traffic = _Traffic(server, engine)
        traffic.run(5.0, bulk=True, queries=True)  # a warm-up
        unloaded = traffic.run(seconds, bulk=False, queries=True)
        alone: list[Round] = []
        both: list[Round] = []
        for number in range(rounds):
            parts = [(alone, False), (both, True)]
            for into, queries in parts if number % 2 == 0 else parts[::-1]:
                into.append(traffic.run(seconds, bulk=True, queries=queries))
                print(
                    f"round {number + 1}: {into[-1].texts_per_second:.1f} bulk texts/s, queries: {queries}", flush=True
                )
    quiet, loaded = (_p99(times) for times in (unloaded.queries, [one for each in both for one in each.queries]))
    batch = float(np.mean([one.batch_seconds for one in both]))
    figures = [
        Figure("p99 of queries beyond the unloaded p99, in micro-batches", [(loaded - quiet) / batch], "<= 2"),
        Figure("p99 of queries, unloaded", [quiet * 1e3], unit="ms"),
        Figure("p99 of queries beside the bulk job", [loaded * 1e3], unit="ms"),
        Figure("micro-batch", [batch * 1e3], unit="ms"),
        Figure(
            "micro-batches with a bulk text over its age bound", [sum(one.overdue for one in (*alone, *both))], "<= 0"
        ),
        Figure(
            "bulk texts/s with queries / without",
            [one.texts_per_second / other.texts_per_second for one, other in zip(both, alone, strict=True)],
            ">= 0.9",
        ),
        Figure("bulk texts/s without queries", [one.texts_per_second for one in alone]),
    ]
    report(out, figures, {"unloaded": vars(unloaded), "both": [vars(one) for one in both]})


class _Traffic:
    def __init__(self, server: Server, engine: Path) -> None:
        self._server = server
        self._maker = TextMaker(engine)
        self._lock = threading.Lock()

    def run(self, seconds: float, *, bulk: bool, queries: bool) -> Round:
        server = self._server
        before = EncoderMetrics(server)
        began = time.monotonic()
        end = began + seconds
        with ThreadPoolExecutor(BULK_CLIENTS + 1) as pool:
            jobs = [pool.submit(self._bulk, end) for _ in range(BULK_CLIENTS if bulk else 0)]
            asked = pool.submit(self._ask, end) if queries else None
            for job in jobs:
                job.result()
            times = asked.result() if asked else []
        took = time.monotonic() - began
        after = EncoderMetrics(server)
        name = "inflight_encoder_queue_time_seconds"
        waited = after.since(before, f"{name}_count", priority="normal")
        in_time = after.since(before, f"{name}_bucket", priority="normal", le=f"{MAX_WAIT_SECONDS}")
        texts = after.since(before, "inflight_encoder_texts_total", status="ok") - len(times)
        mean = after.mean_since(before, "inflight_encoder_batch_seconds")
        return Round(texts / took, times, mean, waited - in_time)

    def _bulk(self, end: float) -> None:
        with Client(self._server.grpc_address) as client:
            while time.monotonic() < end:
                client.embed(self._texts(BULK_TEXTS))

    def _ask(self, end: float) -> list[float]:
        latencies: list[float] = []
        with Client(self._server.grpc_address) as client, ThreadPoolExecutor(32) as pool:
            due = time.monotonic()
            while due < end:
                time.sleep(max(0.0, due - time.monotonic()))
                pool.submit(self._query, client, due, latencies)
                due += 1 / QUERIES_PER_SECOND
        return latencies

    def _query(self, client: Client, due: float, latencies: list[float]) -> None:
        with self._lock:
            text = self._maker.of_lengths([QUERY_TOKENS])[0].text
        client.embed(text, priority=QUERY_PRIORITY)
        latencies.append(time.monotonic() - due)

    def _texts(self, count: int) -> list[str]:
        with self._lock:
            return [text.text for text in self._maker.log_normal(count)]


def _p99(times: list[float]) -> float:
    return float(np.percentile(times, 99))


if __name__ == "__main__":
    main()

"""Moments of jobs, for what shows them."""

from __future__ import annotations

import time
from typing import Any

from inflight.batch.job.counts import Counts
from inflight.batch.job.spec import RunOptions
from inflight.batch.reporting.cost import JobCost
from inflight.batch.reporting.progress import JobProgress, JobState, ServerStatus
from inflight.batch.reporting.throughput import Rates, Throughput


def sample_counts(**values: Any) -> Counts:
    """Of a job that is at its middle."""
    usual: dict[str, Any] = {
        "ok": 4990,
        "error": 7,
        "dead": 3,
        "retries": 12,
        "input_tokens": 400_000,
        "output_tokens": 600_000,
        "seconds": 3600.0,
        "runs": 2,
        "codes": {"prompt_too_long": 7, "row_invalid": 3},
    }
    return Counts(**{**usual, **values})


def sample_progress(state: JobState = JobState.RUNNING, **values: Any) -> JobProgress:
    """Half of 10,000 rows, one server of two up."""
    counts = values.pop("sample_counts", sample_counts())
    usual: dict[str, Any] = {
        "timestamp": time.time(),
        "pid": 12345,
        "host": "worker-7",
        "state": state,
        "counts": counts,
        "total": 10_000,
        "input_fraction": 0.5,
        "in_flight": 48,
        "pending_retries": 2,
        "queue_messages": 20,
        "queue_age": 1.5,
        "concurrency_limit": 64,
        "servers": (
            ServerStatus(name="gpu1:8001", up=True, in_flight=48, concurrency_limit=64),
            ServerStatus(name="gpu2:8001", up=False),
        ),
        "throughput": Throughput(
            last_minute=Rates(rows=10.0, input_tokens=800.0, output_tokens=1234.0),
            this_run=Rates(rows=8.0, input_tokens=600.0, output_tokens=1000.0),
            eta=500.0,
        ),
        "cost": JobCost.from_counts(counts, RunOptions(price_per_hour=2.5)),
    }
    return JobProgress(**{**usual, **values})

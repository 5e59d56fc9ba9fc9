"""Moments of jobs, for what shows them."""

from __future__ import annotations

import time
from typing import Any

from inflight.batch.counts import Counts
from inflight.batch.seen.cost import Cost
from inflight.batch.seen.pace import Rates, Speed
from inflight.batch.seen.progress import Progress, Server, State


def counts(**values: Any) -> Counts:
    """Of a job that is at its middle."""
    usual: dict[str, Any] = {
        "ok": 4990,
        "error": 7,
        "dead": 3,
        "retries": 12,
        "input_tokens": 400_000,
        "output_tokens": 600_000,
        "seconds": 3600.0,
        "lives": 2,
        "codes": {"prompt_too_long": 7, "row_invalid": 3},
    }
    return Counts(**{**usual, **values})


def moment(state: State = State.RUNNING, **values: Any) -> Progress:
    """Half of 10,000 rows, one server of two up."""
    found = values.pop("counts", counts())
    usual: dict[str, Any] = {
        "when": time.time(),
        "pid": 12345,
        "host": "worker-7",
        "state": state,
        "counts": found,
        "total": 10_000,
        "share": 0.5,
        "in_flight": 48,
        "waiting": 2,
        "limit": 64,
        "servers": (Server(name="gpu1:8001", up=True, in_flight=48, limit=64), Server(name="gpu2:8001", up=False)),
        "speed": Speed(
            present=Rates(rows=10.0, input_tokens=800.0, output_tokens=1234.0),
            life=Rates(rows=8.0, input_tokens=600.0, output_tokens=1000.0),
            eta=500.0,
        ),
        "cost": Cost.of(found, 2.5),
    }
    return Progress(**{**usual, **values})

"""Runs made by hand, whose figures are known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loadtests.plan import Arrivals, Plan
from loadtests.record import Outcome, Record
from loadtests.run_directory import RunDirectory

OPEN_LOOP = Arrivals(kind="rate", profile="1", process="constant")


def record(session: int, due: float, ttft: float = 0.1, gaps: Iterable[float] = (0.01,), **values: Any) -> Record:
    """A completed stream, sent when it was due; a whole answer has `chunks=()` and `ended`."""
    sent = values.get("sent", due)
    chunks = [sent + ttft]
    for gap in gaps:
        chunks.append(chunks[-1] + gap)
    defaults: dict[str, Any] = {
        "worker": 0,
        "turn": 0,
        "sent": sent,
        "ended": chunks[-1],
        "outcome": Outcome.COMPLETED,
        "max_tokens": 8,
        "chunks": tuple(chunks),
        "input_tokens": 10,
        "output_tokens": len(chunks),
        "finish_reason": "length",
    }
    return Record(session=session, due=due, **{**defaults, **values})


def failure(session: int, due: float, code: str, outcome: Outcome = Outcome.FAILED, **values: Any) -> Record:
    """One that had no response, and an error after 50 ms."""
    return record(
        *(session, due),
        **{
            "chunks": (),
            "ended": due + 0.05,
            "outcome": outcome,
            "code": code,
            "message": f"it is {code}",
            "input_tokens": None,
            "output_tokens": None,
            "finish_reason": "",
            **values,
        },
    )


def run_of(
    path: Path,
    records: Iterable[Record],
    plan: Plan | None = None,
    server: Iterable[Mapping[str, Any]] = (),
    generator: Iterable[Mapping[str, Any]] = (),
) -> RunDirectory:
    directory = RunDirectory.make(path)
    directory.write_plan(plan or Plan(seconds=10))
    directory.write_facts({"began": "2026-01-02T03:04:05+00:00"})
    directory.requests.write_text("".join(f"{made.line()}\n" for made in records))
    for file, lines in ((directory.server, server), (directory.generator, generator)):
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return directory


def sample(t: float, moment: str = "during", **values: float) -> dict[str, Any]:
    """A page whose series are all of the engine's model; a name's label stands behind two underscores."""
    return {"t": t, "moment": moment, "values": values}


def process(worker: int, t: float, cpu: float = 0.2, lag: float = 0.001, sent: int = 0) -> dict[str, Any]:
    return {"worker": worker, "t": t, "cpu": cpu, "lag": lag, "open": 0, "sent": sent}


def steady(seconds: int, sent: int, exhausted: bool = False) -> list[dict[str, Any]]:
    """The samples of a process that had an easy time, and sent so many requests; at the end it may have no more."""
    found = [process(0, t + 1.0, sent=round(sent * (t + 1) / seconds)) for t in range(seconds)]
    found[-1]["exhausted"] = exhausted
    return found

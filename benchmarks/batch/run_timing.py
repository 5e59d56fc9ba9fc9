"""Runs a job in its own process and measures its parts: `python -m benchmarks.batch.run_timing FIGURES run ...`.

It is the command `inflight batch` itself; the times of its parts are measured and written to FIGURES as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.runner import JobRunner
from inflight.batch.state.ledger import Ledger
from inflight.cli import main


@dataclass
class RunTimings:
    """Seconds. `run`: from the job's start until everything is written, including the manifest; without Python's start.

    `checkpoints`: of the checkpoint thread, including disk waits; `checkpoint_processor`: its processor time.
    `processor`: of the whole process, including its start.
    """

    run: float = 0.0
    checkpoints: float = 0.0
    checkpoint_processor: float = 0.0
    checkpoint_count: int = 0
    processor: float = 0.0


def run_measured(*arguments: str) -> RunTimings:
    """Run `inflight batch` with these arguments. Raises BatchError unless it exits with 0."""
    figures = Path(".cache/bench/batch_life.json")
    figures.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.batch.run_timing", str(figures), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BatchError(f"inflight batch ended with {done.returncode}: {done.stderr[-2000:]}", "job_failed")
    return RunTimings(**json.loads(figures.read_text()))


def _measured() -> RunTimings:
    timings = RunTimings()

    def around(whole: type, name: str, note: Callable[[float, float], None]) -> None:
        inner = getattr(whole, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            began, processor = time.perf_counter(), time.thread_time()
            try:
                return inner(*args, **kwargs)
            finally:
                note(time.perf_counter() - began, time.thread_time() - processor)

        setattr(whole, name, measured)

    def checkpoint(seconds: float, processor: float) -> None:
        timings.checkpoints += seconds
        timings.checkpoint_processor += processor
        timings.checkpoint_count += 1

    def add_run(seconds: float, processor: float) -> None:
        timings.run += seconds

    around(Ledger, "checkpoint", checkpoint)
    around(JobRunner, "run", add_run)
    return timings


if __name__ == "__main__":
    figures = _measured()
    try:
        main(["batch", *sys.argv[2:]])
    finally:
        figures.processor = time.process_time()
        Path(sys.argv[1]).write_text(json.dumps(asdict(figures)))

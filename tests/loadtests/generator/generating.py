"""The load's generator as tests start it: processes of its own, for Locust patches the whole of one for gevent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from loadtests.plan import Plan
from loadtests.record import Record
from loadtests.run_directory import RunDirectory

LONGEST = 240.0
"""Seconds that anything here may take on a busy machine."""


def of_generator(directory: RunDirectory, plan: Plan, workers: int = 1) -> list[str]:
    """Prepare a directory, and give the command that makes its run."""
    directory.write_plan(plan)
    directory.write_facts({})
    return [sys.executable, "-m", "loadtests.generator.main", str(directory.path), f"--workers={workers}"]


@contextmanager
def started(command: list[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to a file; behind the block neither it nor a child of it is there."""
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.wait()


def wait_until(true: Callable[[], object], what: str) -> None:
    until = time.monotonic() + LONGEST
    while not true():
        assert time.monotonic() < until, f"{what} did not come about in {LONGEST} s"
        time.sleep(0.05)


def has_told(directory: RunDirectory, workers: int = 1) -> bool:
    """Whether each of its processes has sent requests, and there are records."""
    samples = lines(directory.generator)
    told = {sample["worker"] for sample in samples if sample["sent"]}
    return len(told) == workers and bool(lines(directory.requests))


def lines(file: Path) -> list[dict[str, object]]:
    """The whole lines of a file that may still be written."""
    if not file.exists():
        return []
    text = file.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def by_session(records: list[Record]) -> dict[int, list[Record]]:
    """The records of each session, in the order of its turns."""
    found: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.session, record.turn)):
        found.setdefault(record.session, []).append(record)
    return found

"""Job processes, as tests start, watch and end them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from inflight.batch.failpoints import VARIABLE

SOON = 60.0
"""Seconds in which the process of a small job ends on a machine that is slow and busy."""


class JobProcess:
    """A process that runs `inflight batch`."""

    def __init__(self, lives: JobProcesses, pid: int, output: Path, points: Path | None) -> None:
        self._lives, self.pid, self._output, self._points = lives, pid, output, points
        self.status: int | None = None
        self.ended = threading.Event()

    def wait(self, seconds: float = SOON) -> int:
        """Its exit code; negative for the signal that ended it."""
        assert self.ended.wait(seconds), f"a life did not end in {seconds} s; it said: {self.said}"
        assert self.status is not None
        return self.status

    def send(self, number: signal.Signals) -> None:
        """A process that has ended gets no signal."""
        self._lives.send_command({"pid": self.pid, "signal": number})

    @property
    def said(self) -> str:
        return self._output.read_text()

    def reached(self) -> dict[str, int]:
        """How often it came by each point; for one that was asked to note that and was not killed."""
        assert self._points is not None
        reached: dict[str, int] = json.loads(self._points.read_text())
        return reached


class JobProcesses:
    """A context manager; processes that still run at its end are killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_pid: dict[int, JobProcess] = {}
        self._started: list[int] = []
        self._came = threading.Condition()
        self._number = 0

    def __enter__(self) -> JobProcesses:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.batch.crash.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(
        self,
        *arguments: str | Path,
        failpoint: str = "",
        note: bool = False,
        environment: Mapping[str, str] | None = None,
        **limits: int,
    ) -> JobProcess:
        """Begin `inflight batch` with these arguments; `file_size` limits how long a file it may write."""
        self._number += 1
        output = self._directory / f"life-{self._number}.txt"
        points = output.with_suffix(".json") if note else None
        self.send_command({
            "arguments": ["batch", *map(str, arguments)],
            "environment": {**(environment or {}), VARIABLE: failpoint},
            "output": str(output),
            "points": str(points or ""),
            **limits,
        })  # fmt: skip
        with self._came:
            assert self._came.wait_for(lambda: self._started, SOON)
            life = JobProcess(self, self._started.pop(), output, points)
            self._by_pid[life.pid] = life
            self._came.notify_all()
        return life

    def run(self, *arguments: str | Path, failpoint: str = "") -> JobProcess:
        """As `start`, and wait for its end."""
        life = self.start(*arguments, failpoint=failpoint)
        life.wait()
        return life

    def send_command(self, values: dict[str, object]) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), json.dumps(values).encode() + b"\n")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._came:
                if "status" not in event:
                    self._started.append(event["pid"])
                    self._came.notify_all()
                    self._came.wait_for(lambda: not self._started, SOON)
                    continue
                life = self._by_pid.pop(event["pid"])
            life.status = event["status"]
            life.ended.set()

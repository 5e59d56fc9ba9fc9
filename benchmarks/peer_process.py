"""A process of another program that a benchmark compares with: it reads lines of JSON, and answers each with one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ANSWER = "answer "
"""The beginning of an answer's line: the libraries of the process print lines too."""


_GUARD = """
import os, signal, sys
sys.stdin.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except ProcessLookupError:
    pass
"""
"""Kills what is left of a process group when its input closes. A stopped process would outlive a killed benchmark."""


class PeerProcess:
    """A started process, in a process group of its own. Between calls it is stopped if `paused`, so that its threads
    take no processor time from the other sides."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, paused: bool = True
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(self._process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        self._log = log
        self._paused = paused
        self.ready: Any = self._read()
        """The first answer, which the process gives unasked when it can work."""
        self._send(signal.SIGSTOP)

    def call(self, request: Any) -> Any:
        """Return the answer. Raises RuntimeError if the process ends."""
        assert self._process.stdin is not None
        with self._running():
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return self._read()

    def close(self) -> None:
        """End the process, and then what it has started."""
        assert self._process.stdin is not None
        with self._running(), suppress(subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(60)
        self._guard.communicate()
        self._process.wait()

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            if self._process.returncode is None:
                self._send(signal.SIGSTOP)

    def _send(self, what: signal.Signals) -> None:
        if self._paused and self._process.poll() is None:
            os.killpg(self._process.pid, what)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        self._process.wait()
        raise RuntimeError(f"{self._process.args!r} has ended; its log is {self._log}")

"""The parent's side of the guide probe: starts the process, sends guides, and ends it if a probe exceeds its limits."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from inflight.common.python_module import python_module
from inflight.runtime.messages import DecodingGuide

MAX_CPU_SECONDS = 6.0
"""Processor time limit of a probe, which ends much sooner unless the compiler doesn't return."""

MAX_WALL_SECONDS = 120.0
"""Wall time limit of the process's start and of a probe, on a machine under any load."""

MAX_MEMORY_BYTES = 512 << 20
"""Memory that a probe may use beyond what its process had before."""

MAX_PROBES = 256
"""After this many probes the process is replaced, which frees what the compiler has kept."""


class GuideProbeResult(NamedTuple):
    """What is wrong with a guide, "" if it passed, and its approximate size in bytes when compiled."""

    fault: str
    compiled_bytes: int = 0


class GuideProbeProcess:
    """One process of `probe` and the guide that it is probing: `key`, None while it is idle."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            self._process = subprocess.Popen(
                python_module(
                    "inflight.runtime.backends.openvino.guided_decoding.probe", str(theirs.fileno()), *arguments
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.kill = weakref.finalize(self, _kill, self._process, self._connection)
        self.key: bytes | None = None
        self._ready = False
        self._probes = 0
        self._usage_at_start = _Usage.from_pid(self._process.pid)

    @property
    def idle(self) -> bool:
        """Return whether it has started and waits for a guide."""
        return self._ready and self.key is None

    @property
    def ended(self) -> bool:
        return not self.kill.alive

    def start(self, key: bytes, guide: DecodingGuide) -> None:
        self.key = key
        self._probes += 1
        self._usage_at_start = _Usage.from_pid(self._process.pid)
        try:
            self._connection.send(guide)
        except OSError:
            pass  # result() finds the same exit

    def result(self, timeout: float) -> GuideProbeResult | None:
        """Return the result of the probe or of the process's start; None if it isn't known within `timeout` seconds.

        If the process dies or exceeds a limit, `ended` is true and the result gives the reason.
        """
        try:
            verdict: GuideProbeResult | None = self._connection.recv() if self._connection.poll(timeout) else None
        except (EOFError, OSError):
            verdict = GuideProbeResult("makes the compiler fail; make it simpler")
            self.kill()
        if verdict is None and self._exceeds_limits():
            verdict = GuideProbeResult("takes too long or too much memory to compile; make it simpler")
            self.kill()
        if verdict is not None:
            self._ready, self.key = True, None
            if self._probes >= MAX_PROBES:
                self.kill()
        return verdict

    def _exceeds_limits(self) -> bool:
        used = _Usage.from_pid(self._process.pid)
        if used.clock - self._usage_at_start.clock > MAX_WALL_SECONDS:
            return True
        if not self._ready:
            return False
        return (
            used.processor_seconds - self._usage_at_start.processor_seconds > MAX_CPU_SECONDS
            or used.resident_bytes - self._usage_at_start.resident_bytes > MAX_MEMORY_BYTES
        )


class _Usage(NamedTuple):
    """Resources that a process has used until now."""

    clock: float
    processor_seconds: float
    resident_bytes: int

    @classmethod
    def from_pid(cls, pid: int) -> _Usage:
        """Read the usage of a process; all 0 for one that has exited."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            fields = ["0"] * 30
        ticks = int(fields[11]) + int(fields[12])
        return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * resource.getpagesize())


def _kill(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()

"""A child process that runs a module of ours, with a connection to it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from inflight.common.child_process import python_module
from inflight.common.process_tree import TAG_VARIABLE, kill_tagged


class WorkerProcess:
    """Runs `python -m MODULE FD`, where FD is the child's end of `connection`.

    However the process ends, its whole process tree ends with it once it is reaped.
    """

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.connection = Connection(ours.detach())
            self._tag = os.environ.get(TAG_VARIABLE, "") + secrets.token_hex(8)
            self._process = subprocess.Popen(
                python_module(module, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": _python_path(), TAG_VARIABLE: self._tag},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def shut_down_connection(self) -> None:
        """Wake both ends: the child reads the end of its commands, a thread here the end of its answers."""
        try:
            with socket.socket(fileno=os.dup(self.connection.fileno())) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the child exited first

    def end(self, timeout: float) -> None:
        """Wait so many seconds for the process's exit, then kill it."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self.wait_and_reap()

    def wait_and_reap(self) -> int:
        """Wait for the process's exit, then end its process tree: a killed process can't do that itself."""
        status = self._process.wait()
        kill_tagged(self._tag)
        return status


def exit_reason(status: int) -> str:
    """Return how a process ended, in words."""
    return f"signal {-status}" if status < 0 else f"status {status}"


def _python_path() -> str:
    """Return this process's module search path, then PYTHONPATH, which Triton's isolated stub ignores."""
    return os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))

"""A tritonserver process under a guard, and its process tree."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from inflight.deploy.errors import DeployError
from inflight.deploy.server import guard
from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY
from inflight.deploy.server.stall_detector import ResourceUsage, measure_usage

ENGINE_PROCESS = "the engine's process"
"""Prefix of the names of processes that run an engine."""

SERVER_PROCESS = "tritonserver"

_INSTANCE = re.compile(r"(.+)_\d+_\d+")
_NO_RANK = 1 << 30
# The process that ends a stub with its server: the others work without it.
_STUB_GUARD = "inflight.runtime.triton.stub.guard"

# A guard that has not started the server within this time never will.
_GUARD_TIMEOUT = 30.0


@dataclass(frozen=True)
class ProcessInfo:
    """A process of the server's tree; `created` distinguishes it from a later one with the same id."""

    pid: int
    created: float
    name: str

    def is_running(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal; None if unknown, as once its parent has reaped it (proc(5))."""
        try:
            with open(f"/proc/{self.pid}/stat", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        status = int(fields[49]) if fields[0] == "Z" else 0
        return os.waitstatus_to_exitcode(status) if status else None


class ExitPoll:
    """Tells with one system call whether a process of several may have exited. Reading /proc takes the engine's cores a
    millisecond per check of a process tree."""

    def __init__(self, members: Iterable[ProcessInfo]) -> None:
        self._poll = select.poll()
        self._files: list[int] = []
        self._watches_all = True
        for member in members:
            try:
                self._files.append(os.pidfd_open(member.pid))
            except (OSError, AttributeError):  # just exited, or forbidden; or missing in this Python
                self._watches_all = False
            else:
                self._poll.register(self._files[-1], select.POLLIN)
                self._watches_all &= member.is_running()  # and the file is of no later process

    def may_have_exited(self) -> bool:
        return not self._watches_all or bool(self._poll.poll(0))

    def close(self) -> None:
        """Close the files; then every process may have exited."""
        self._watches_all = False
        while self._files:
            os.close(self._files.pop())


class TritonProcess:
    """A running tritonserver that ends with this process, even at SIGKILL."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, shm_prefix: str) -> None:
        self._shm_prefix = shm_prefix
        self._status_data = b""
        self.exit_code: int | None = None
        working = log.with_name("working")  # Python in a model's process searches it for modules first: it stays empty
        working.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as guards:
            lifeline, self._lifeline = _pipe(reading=guards, writing=ours)
            self._status, status = _pipe(reading=ours, writing=guards)
            with log.open("ab") as output:
                self._guard = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        guard.__file__,
                        str(lifeline),
                        str(status),
                        shm_prefix,
                        *command,
                    ],
                    env=environment,
                    pass_fds=[lifeline, status],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=working,
                    start_new_session=True,  # Ctrl-C in the terminal is for the supervisor, which then drains
                )
            ours.callback(self._stop_guard)  # and its process tree
            guards.close()
            self.pid = self._server_pid()
            ours.pop_all()

    def poll(self) -> int | None:
        """Return the server's exit code, negative for a signal; None while it runs."""
        guard_ended = self._guard.poll() is not None  # first: all output before its exit can be read then
        while self.exit_code is None:
            lines = self._status_data.splitlines()
            if len(lines) > 1 and self._status_data.endswith(b"\n"):
                self.exit_code = int(lines[1].split()[1])
            elif not self._read_status(0):
                break
        if self.exit_code is None and guard_ended:
            self.exit_code = -signal.SIGKILL  # the guard was killed, and the server with it
        return self.exit_code

    def wait(self, seconds: float) -> bool:
        """Wait for the server's exit; return whether it exited in time."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            select.select([self._status], [], [], min(left, 0.5))
        return True

    def stop(self, seconds: float) -> None:
        """Send SIGTERM, then SIGKILL after `seconds`, and wait until the whole process tree has exited."""
        if self.poll() is None:
            self.signal(signal.SIGTERM)
            if not self.wait(seconds):
                self.signal(signal.SIGKILL)
                self.wait(10)
        self._close_lifeline()
        self._guard.wait()
        if self._status >= 0:
            os.close(self._status)
            self._status = -1

    def signal(self, number: int) -> None:
        """Send a signal to the server only. The guard has not reaped it while `poll` returns None."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def hide_shared_memory(self) -> None:
        """Deny other users access to the server's shared memory, which the backend makes readable for all.

        It holds prompts and answers. A umask would not suffice: the backend sets the mode after creating it.
        """
        for region in SHARED_MEMORY_DIRECTORY.glob(f"{self._shm_prefix}*"):
            with contextlib.suppress(OSError):
                region.chmod(0o600)

    @property
    def server_pid(self) -> int:
        """Return the process id of tritonserver; under mpirun, of the first rank's."""
        ranks = [member for member in self.process_tree() if member.name.startswith(SERVER_PROCESS)]
        return ranks[0].pid if ranks else self.pid

    def process_tree(self) -> list[ProcessInfo]:
        """Return the server, its models' stubs and their child processes; with mpirun, also mpirun and all ranks.

        The first rank is the first server.
        """
        try:
            first = psutil.Process(self.pid)
            if first.name() == SERVER_PROCESS:
                return list(_server_processes(first, SERVER_PROCESS))
            mpirun = ProcessInfo(first.pid, first.create_time(), first.name())
            ranks = sorted(first.children(), key=_rank_of)
            return [mpirun, *(member for rank in ranks for member in _server_processes(rank, _rank_name(rank)))]
        except psutil.NoSuchProcess:
            return []

    def listens(self, port: int) -> bool:
        """Return whether tritonserver itself listens at a port; also true where the system does not say."""
        try:
            connections = psutil.Process(self.server_pid).net_connections("tcp")
        except psutil.AccessDenied:
            return True
        except psutil.NoSuchProcess:
            return False
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)

    def cpu_seconds(self, counts: Callable[[str], bool] = lambda name: True) -> float:
        """Return the CPU time that the process tree has used so far: its members of whose names `counts` is true."""
        total = 0.0
        for member in self.process_tree():
            if not counts(member.name):
                continue
            try:
                times = psutil.Process(member.pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def resource_usage(self) -> ResourceUsage:
        """Return what the guard and the server's process tree have used so far."""
        try:
            guard = psutil.Process(self._guard.pid)
            return measure_usage([guard, *guard.children(recursive=True)])
        except psutil.NoSuchProcess:
            return ResourceUsage()

    def kill(self) -> None:
        """Kill the guard, and with it the server. Any thread may call this, even while another waits."""
        self._guard.kill()

    def _server_pid(self) -> int:
        """Return the process id in the guard's first line."""
        while self._status_data.count(b"\n") == 0:
            if not self._read_status(_GUARD_TIMEOUT):
                raise DeployError(
                    "The server's guard did not start; is the machine out of memory?", "server_start_failed"
                )
        return int(self._status_data.split()[1])

    def _stop_guard(self) -> None:
        self._guard.kill()
        self._guard.wait()

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _read_status(self, seconds: float) -> bool:
        """Read the guard's next line; return False if there is no line in time."""
        if self._status < 0 or not select.select([self._status], [], [], seconds)[0]:
            return False
        heard = os.read(self._status, 100)
        self._status_data += heard
        return bool(heard)


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """Create a pipe whose ends close with their users."""
    ends = os.pipe()
    reading.callback(os.close, ends[0])
    writing.callback(os.close, ends[1])
    return ends


def _server_processes(server: psutil.Process, name: str) -> Iterator[ProcessInfo]:
    yield ProcessInfo(server.pid, server.create_time(), name)
    of_rank = name.removeprefix(SERVER_PROCESS)
    for stub in server.children():
        model = _model_of(stub)
        yield ProcessInfo(stub.pid, stub.create_time(), f"the stub of {model}{of_rank}")
        for child in stub.children():
            if not any(_STUB_GUARD in argument for argument in child.cmdline()):
                yield ProcessInfo(child.pid, child.create_time(), f"{ENGINE_PROCESS} of {model}{of_rank}")


def _model_of(stub: psutil.Process) -> str:
    """Return the model of a stub: its command line ends with the name of the model's instance, "NAME_0_0 DEFAULT"."""
    for argument in reversed(stub.cmdline()[-2:]):
        if match := _INSTANCE.fullmatch(argument):
            return match[1]
    return "a model"


def _rank_of(process: psutil.Process) -> int:
    """Return the rank that mpirun gave a process; processes without one come last."""
    try:
        return int(process.environ().get("OMPI_COMM_WORLD_RANK", _NO_RANK))
    except (psutil.AccessDenied, ValueError):
        return _NO_RANK


def _rank_name(process: psutil.Process) -> str:
    name = process.name()
    if name == SERVER_PROCESS:
        return f"{SERVER_PROCESS} of rank {_rank_of(process)}"
    return f"the worker {name}"

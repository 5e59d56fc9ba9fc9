"""The guard of a tritonserver: ends the server's process tree with the supervisor, however the supervisor ends.

Run as a file by a bare interpreter (`python -I -S guard.py LIFELINE STATUS SHM_PREFIX PROGRAM ARGUMENT...`), with the
standard library only, so it takes only a few megabytes. LIFELINE is the read end of a pipe whose other end only the
supervisor holds; it closes with the supervisor, even at SIGKILL, whichever thread started the server. The guard writes
two lines to STATUS: `pid N` at the start and `exit N` at the end (negative: the signal's number). It adopts the
server's orphans, so it can end them all; then it removes their shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SHARED_MEMORY_DIRECTORY = "/dev/shm"
# A supervisor that closes its end on purpose has already sent SIGTERM; a killed one can't drain any more.
STOP_TIMEOUT = 3.0


def main(lifeline: int, status: int, shm_prefix: str, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    for fd in (lifeline, status):
        os.set_inheritable(fd, False)
    supervisor = os.getppid()
    set_affinity(os.environ.get("INFLIGHT_SERVER_CORES", ""))
    server = start(libc, command)
    os.write(status, f"pid {server}\n".encode())
    code = watch(server, supervisor, lifeline, wake_read)
    with contextlib.suppress(BrokenPipeError):  # the reader may have exited
        os.write(status, f"exit {code}\n".encode())
    end_orphans()
    remove_shared_memory(shm_prefix)


def set_affinity(cores: str) -> None:
    """Keep to these cores without preempting others; the server inherits both (see inflight/common/cpu_affinity.py)."""
    if cores:  # a sandbox may forbid either, and a slightly slower server still serves
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, map(int, cores.split(",")))
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def start(libc: ctypes.CDLL, command: list[str]) -> int:
    """Start the server so that it dies with this process (PR_SET_PDEATHSIG refers to its one thread)."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(restored, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == guard:
            os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def watch(server: int, supervisor: int, lifeline: int, wake: int) -> int:
    """Reap until the server has exited, ending it once the supervisor has exited; return its exit code."""
    kill_at: float | None = None
    waiting_for = [wake, lifeline]
    while True:
        readable, _, _ = select.select(waiting_for, [], [], 0.1 if kill_at else 1.0)
        if wake in readable:
            os.read(wake, 4096)
        code = reap(server)
        if code is not None:
            return code
        # A child that the supervisor forked may hold the other end of the lifeline: so check the parent too.
        if kill_at is None and (lifeline in readable or os.getppid() != supervisor):
            waiting_for = [wake]
            kill_at = time.monotonic() + STOP_TIMEOUT
            os.kill(server, signal.SIGTERM)
        elif kill_at is not None and time.monotonic() > kill_at:
            os.kill(server, signal.SIGKILL)


def reap(server: int) -> int | None:
    """Reap all exited children; return the server's exit code if it is one of them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == server:
            code = os.waitstatus_to_exitcode(status)


def end_orphans() -> None:
    """Kill all processes that the server left behind; their orphans are reparented to this process in turn."""
    while True:
        for child in children():
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Return the children of this process, zombies included."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # exited meanwhile
            if parent == os.getpid():
                pids.append(int(name))
    return pids


def remove_shared_memory(shm_prefix: str) -> None:
    """Remove the shared memory regions of this server only."""
    for name in os.listdir(SHARED_MEMORY_DIRECTORY):
        if name.startswith(shm_prefix):
            with contextlib.suppress(FileNotFoundError):  # the next server removes stale ones at the same time
                os.unlink(os.path.join(SHARED_MEMORY_DIRECTORY, name))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])

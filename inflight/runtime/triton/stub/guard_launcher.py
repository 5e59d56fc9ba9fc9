"""Starts the guard of a model's process."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

from inflight.common.process_tree import TAG_VARIABLE, start_time

# The runtime is a directory or, vendored, an archive; the guard's interpreter has neither on its path.
_ROOT = os.path.abspath(os.path.join(__file__, *[os.pardir] * 5))
GUARD_MODULE = "inflight.runtime.triton.stub.guard"
LAYOUT_VARIABLE = "INFLIGHT_STUB_LAYOUT"
"""Set if the server is the wheel's Triton, whose shared memory layout is known here."""
_PROGRAM = f"import sys; sys.path.append(sys.argv[1]); from {GUARD_MODULE} import main; main(sys.argv[2:])"

_OWNERSHIP_BYTES = 16
"""Precede each object in the memory that a stub shares with its server (python_backend's shm_manager.h)."""

_guards: list[subprocess.Popen[bytes]] = []


def end_with_server() -> None:
    """Start a guard that ends this process soon after its server exits, for any reason.

    Triton's stub detects a dead server by itself, but waits forever for a thread that waits for the server's answer.
    """
    server, stub = _server_pid(), os.getpid()
    server_started = start_time(server)
    if server_started is None:  # exited while this process started
        os._exit(1)
    watched = map(str, (server, server_started, stub, start_time(stub)))
    mark = secrets.token_hex(8)
    _guards.append(
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT, *watched, mark, *_health_flag()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # signals to the process group must not end the guard
        )
    )
    os.environ[TAG_VARIABLE] = mark  # inherited by all processes started from now on


def _arguments() -> list[str]:
    """Return this process's arguments: the stub, a model, a shared memory region, two sizes, the server, ..."""
    with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as file:
        return file.read().split("\0")


def _health_flag() -> tuple[str, ...]:
    """Return the file and offset of the stub's health flag; empty for a Triton of unknown layout.

    It is the first byte of the backend's IPCControlShm (pb_utils.h), whose offset is among a stub's arguments.
    """
    arguments = _arguments()
    if LAYOUT_VARIABLE not in os.environ or not arguments[7:8] or not arguments[7].isdigit():
        return ()
    return f"/dev/shm/{arguments[2]}", str(int(arguments[7]) + _OWNERSHIP_BYTES)


def _server_pid() -> int:
    """Return the server's process id, from the stub's arguments: its parent may have changed by now."""
    arguments = _arguments()
    parent = str(os.getppid())
    return int(arguments[5]) if parent not in arguments and arguments[5:6] and arguments[5].isdigit() else int(parent)

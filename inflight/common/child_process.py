"""Starts programs and Python modules as child processes, and ends them with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def python_module(module: str, *arguments: str) -> list[str]:
    """Return `python -P -m MODULE ARGUMENT...`; before Python 3.11, which has no `-P`, an equivalent.

    `-m` alone puts the current directory first in `sys.path`, so that a file `numpy.py` there would replace the
    library.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    run = f"import sys; del sys.path[0]; import runpy; runpy.run_module({module!r}, None, '__main__', True)"
    return [sys.executable, "-c", run, *arguments]


@contextlib.contextmanager
def child_process(
    command: Sequence[str], stderr: Any, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command with pipes of UTF-8 text as its input and output; kill its process group at the end of the block.

    It has a session of its own: Ctrl-C in the terminal reaches only this process, which then ends the block.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        env=env,
    )
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill the process group of a child with a session of its own, wait for the child, and close its pipes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def exit_reason(code: int) -> str:
    """Return how a process ended, for a message."""
    if code == -signal.SIGKILL:
        return "its process was killed, most likely because memory ran out"
    return f"its process ended with status {code}"

"""Interrupts come in a separate process: in the test's process they could end the test run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[3]
END_SECONDS = 100.0
"""How long a program may take to end once it has said all, on a slow and busy machine too."""


class Program:
    """tests.client.support.interrupt_program, as it runs."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def said(self) -> dict[str, Any]:
        """What it says next; AssertionError when it ends instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def interrupt(self) -> float:
        """Ctrl-C; and the moment of it. Only for a program that is known to be in the midst of an answer."""
        moment = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        return moment

    def go_on(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Its exit code, once it has ended, and what it wrote on standard error."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait(END_SECONDS)
        self._errors.seek(0)
        return code, self._errors.read()


@contextmanager
def interruptible(what: str, url: str) -> Iterator[Program]:
    """The program at its work; it must end well, and silently: an exception that Python ignores is reported there too.

    What goes wrong meanwhile is raised with how the program ended, a crash perhaps, and what it wrote by then.
    """
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.client.support.interrupt_program", what, url]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=errors) as process,
    ):
        program = Program(process, errors)
        try:
            yield program
        except BaseException as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            process.kill()
            error.add_note(f"The interrupted program's exit code and standard error: {program.end()}")
            raise
        assert program.end() == (0, "")

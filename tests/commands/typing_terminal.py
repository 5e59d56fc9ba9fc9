"""A command of ours at a terminal of its own, and who types there."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SOON = 60.0
_PROGRAM = "from inflight.cli import main; main()"
# What a terminal would not show: colours, and readline's bracketed paste.
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class TypingTerminal:
    """Types, and waits for what shows. Each wait begins behind what the last one found."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt_the_prompt(self) -> None:
        """Ctrl-C where a line is awaited, as a person would: CPython misses one between prompt and wait for keys."""
        self.type("tea")
        self.wait_for("tea")
        time.sleep(0.3)
        self.type("\x03")

    def wait_for(self, words: str) -> str:
        """What shows up to these words."""
        end = time.monotonic() + SOON
        while words not in self._shown:
            assert time.monotonic() < end, f"no {words!r} in {self._shown!r}"
            if not self._read():
                raise AssertionError(f"it ended without {words!r}: {self._shown!r}")
        before, _, self._shown = self._shown.partition(words)
        return before

    def rest(self) -> tuple[int, str]:
        """The exit code, and what still shows."""
        end = time.monotonic() + SOON
        while self._read():
            assert time.monotonic() < end, f"it goes on after {self._shown!r}"
        return self._process.wait(SOON), self._shown

    def _read(self) -> bool:
        """Take what there is; False at the end."""
        if not select.select([self._master], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that nobody has the terminal open any more
            return False
        self._shown += _SEQUENCE.sub("", data.decode(errors="replace")).replace("\r", "")
        return bool(data)


@contextmanager
def at_a_terminal(*arguments: str, **variables: str) -> Iterator[TypingTerminal]:
    """Run `inflight` there; whatever happens, it ends with the block."""
    master, slave = pty.openpty()
    # A session's leader that opens a terminal makes it its own: so Ctrl-C comes as SIGINT, as at any prompt.
    shell = f'exec "$@" <>{os.ttyname(slave)} >&0 2>&0'
    process = subprocess.Popen(
        ["sh", "-c", shell, "sh", sys.executable, "-c", _PROGRAM, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", **variables},
    )
    os.close(slave)
    try:
        yield TypingTerminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)

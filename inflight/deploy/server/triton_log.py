"""Triton's log: relayed as it grows, and searched for the reason when a start failed."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from pathlib import Path

# I1121 02:02:48.803781 10470 metrics.cc:770] "Collecting CPU metrics"
_LINE = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+\] ?(.*)", re.DOTALL)
# Said by every server without a GPU, as errors and warnings, though nothing is wrong. Other words about CUDA are what
# goes wrong on one with a GPU.
_NO_GPU = re.compile(
    r"unable to create stream for ensemble|CudaDriverHelper|CUDA memory pool|number of CUDA devices"
    r"|pinned system memory|pinned memory pool",
    re.IGNORECASE,
)
# Errors that only repeat that there was an error.
_CONSEQUENCE = re.compile(
    r"failed to load all models|Failed to create instance|which has no loaded version|exit-on-error", re.IGNORECASE
)
# Triton's last words where it ends with requests inside whose clients have gone (see drain.py). Whether requests were
# cut, who stops the server says.
_STOPPED = re.compile(r"failed to stop server: .*Exit timeout expired")
# The last line of a Python traceback.
_EXCEPTION = re.compile(r"[A-Za-z_.]+(Error|Exception): ")
# Our own signal, and the frames of a crash.
_NOISE = re.compile(r"Signal \(| *\d+# ")
_ROTATE_BYTES = 16 << 20
_TAIL_BYTES = 64 << 10


class LogRelay:
    """Hands on, line by line, warnings, errors and what models print; with `everything`, all of it."""

    def __init__(self, log: Path, on_line: Callable[[str], None], *, everything: bool) -> None:
        self._log = log
        self._on_line = on_line
        self._everything = everything
        self._offset = 0
        self._rest = b""
        self._stop = threading.Event()
        self.muted = not everything
        self._thread = threading.Thread(target=self._run, name="triton-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand on what is left, and end."""
        self._stop.set()
        self._thread.join()
        self._relay()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self._relay()

    def _relay(self) -> None:
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if not self.muted and (self._everything or is_relevant(text)):
                self._on_line(text)
        if self._offset > _ROTATE_BYTES:
            self._rotate()

    def _rotate(self) -> None:
        """Keep one log before this one. The server appends, so it goes on at the emptied file's start."""
        with contextlib.suppress(OSError):  # on a full disk the old lines are what to give up
            self._log.with_suffix(".log.1").write_bytes(self._log.read_bytes())
        with contextlib.suppress(OSError), self._log.open("r+b") as file:
            file.truncate()
            self._offset = 0


def ignore_write_errors(sink: Callable[[str], None]) -> Callable[[str], None]:
    """The same sink, but a line that can't be written (a closed terminal or pipe) is dropped."""

    def write(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sink(line)

    return write


def is_relevant(line: str) -> bool:
    """Whether an operator wants this line on the terminal."""
    match = _LINE.match(line)
    if match:
        return match[1] != "I" and not _NO_GPU.search(match[2]) and not _STOPPED.search(match[2])
    # Without a mark of Triton's it comes from a model, or is a table's line, or says that our own signal
    # came.
    return bool(line) and line[0] not in "+|" and not _NOISE.match(line)


def log_size(log: Path) -> int:
    """Where what is written from now on begins."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def failure_reason(log: Path, begins: int = 0) -> str:
    """The server's own last errors behind byte `begins`, as one line; its last lines where it named no error."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(begins if begins <= end else 0, end - _TAIL_BYTES))  # it may have been emptied meanwhile
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    errors = [error for error in map(_error, lines) if error]
    # The last exception that a process of a model printed stands behind what Triton says of that model.
    printed = [line.strip() for line in lines if _EXCEPTION.match(line)]
    if not errors and not printed:
        errors = [line.strip() for line in lines if line.strip() and line[0] not in "+|"][-1:]
    return " / ".join(dict.fromkeys(errors[-2:] + printed[-1:])) or "it said nothing"


def _error(line: str) -> str | None:
    """What an error of Triton's says, without the place in the code, which only the log needs."""
    match = _LINE.match(line)
    if not match or match[1] not in "EF" or any(one.search(match[2]) for one in (_NO_GPU, _CONSEQUENCE, _STOPPED)):
        return None
    # Triton writes the line breaks of a message as two characters.
    text = match[2].strip('" ').partition("\\n\\nAt:")[0].replace("\\n", " ")
    return text[:600].strip()

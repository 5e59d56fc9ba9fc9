"""Relays Triton's log as it grows, and finds the reason of a failed start in it."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from pathlib import Path

# I1121 02:02:48.803781 10470 metrics.cc:770] "Collecting CPU metrics"
_LINE = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+\] ?(.*)", re.DOTALL)
# Every server without a GPU logs these as errors and warnings, though nothing is wrong. Other CUDA messages are real
# errors of a server with a GPU.
_NO_GPU = re.compile(
    r"unable to create stream for ensemble|CudaDriverHelper|CUDA memory pool|number of CUDA devices"
    r"|pinned system memory|pinned memory pool",
    re.IGNORECASE,
)
# Errors that only repeat that there was an error.
_CONSEQUENCE = re.compile(
    r"failed to load all models|Failed to create instance|which has no loaded version|exit-on-error", re.IGNORECASE
)
# Triton's last message if it exits while requests of disconnected clients are open (see `drain`). The supervisor
# reports whether requests were cut.
_STOPPED = re.compile(r"failed to stop server: .*Exit timeout expired")
# The last line of a Python traceback.
_EXCEPTION = re.compile(r"[A-Za-z_.]+(Error|Exception): ")
# The supervisor's signal, and the frames of a crash.
_NOISE = re.compile(r"Signal \(| *\d+# ")
_ROTATE_BYTES = 16 << 20
_TAIL_BYTES = 64 << 10


class LogRelay:
    """Relays warnings, errors and the models' output line by line; with `everything`, all lines."""

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
        """Relay the remaining lines, and stop."""
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
        """Keep one earlier log. The server appends, so it continues at the start of the truncated file."""
        with contextlib.suppress(OSError):  # on a full disk, drop the old lines
            self._log.with_suffix(".log.1").write_bytes(self._log.read_bytes())
        with contextlib.suppress(OSError), self._log.open("r+b") as file:
            file.truncate()
            self._offset = 0


def ignore_write_errors(sink: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap a sink to drop lines that can't be written (a closed terminal or pipe)."""

    def write(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sink(line)

    return write


def is_relevant(line: str) -> bool:
    """Return whether the line belongs on an operator's terminal."""
    match = _LINE.match(line)
    if match:
        return match[1] != "I" and not _NO_GPU.search(match[2]) and not _STOPPED.search(match[2])
    # A line without Triton's prefix comes from a model, or is part of a table, or reports the supervisor's signal.
    return bool(line) and line[0] not in "+|" and not _NOISE.match(line)


def log_size(log: Path) -> int:
    """Return the position at which later output begins."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def failure_reason(log: Path, begins: int = 0) -> str:
    """Return the server's last errors after byte `begins`, as one line; its last lines if it logged no error."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(begins if begins <= end else 0, end - _TAIL_BYTES))  # it may have been truncated meanwhile
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    errors = [error for error in map(_error, lines) if error]
    # The last exception that a model's process printed comes after Triton's message about that model.
    printed = [line.strip() for line in lines if _EXCEPTION.match(line)]
    if not errors and not printed:
        errors = [line.strip() for line in lines if line.strip() and line[0] not in "+|"][-1:]
    return " / ".join(dict.fromkeys(errors[-2:] + printed[-1:])) or "it logged nothing"


def _error(line: str) -> str | None:
    """Return the text of a Triton error, without the code location, which only the log needs."""
    match = _LINE.match(line)
    if not match or match[1] not in "EF" or any(each.search(match[2]) for each in (_NO_GPU, _CONSEQUENCE, _STOPPED)):
        return None
    # Triton writes the line breaks of a message as two characters.
    text = match[2].strip('" ').partition("\\n\\nAt:")[0].replace("\\n", " ")
    return text[:600].strip()

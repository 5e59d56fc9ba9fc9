"""Runs NVIDIA's programs: reads their output line by line, logs all of it, and ends them with the caller."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from build_engines.errors import BuildError
from build_engines.progress import BuildProgress
from build_engines.tensorrt_llm.commands import Command, Step
from build_engines.tensorrt_llm.programs import Programs
from inflight.common.child_process import child_process

# The prefix of their log lines: "[11/21/2026-12:00:00] [TRT-LLM] [I] ".
_PREFIX = re.compile(r"^(\[[^\]]*\] )+")
_SERIALIZING = re.compile(r"Serializing engine to .*rank(\d+)\.engine")
_STEP_PATTERNS = (
    (re.compile(r"Loading calibration dataset"), "Loading the texts to calibrate with"),
    (re.compile(r"Starting quantization"), "Calibrating"),
    (re.compile(r"Quantization done"), "Writing the quantized checkpoint"),
)
# The last line of an exception, or an error of TensorRT's logger; warnings also mention errors.
_ERROR = re.compile(r"^((\w+\.)*\w*(Error|Exception|Interrupt)\b.*|AssertionError.*)$")
_LOGGED_ERROR = re.compile(r"\[E\] ?(.*)$")
_FULL = "No space left on device"
# The last line of a pool of workers, after the error of the one that failed.
_ELSEWHERE = "please check error log"
_MAX_REASON = 300


class OutputParser:
    """Parses the lines of one program. `reason` is its last error; `disk_full` says whether a disk was full."""

    def __init__(self, step: Step, ranks: int, progress: BuildProgress) -> None:
        self.reason = ""
        self.disk_full = False
        self._step = step
        self._ranks = ranks
        self._progress = progress

    def start(self, doing: str) -> None:
        self._progress.step(doing)
        if self._step == "build":
            self._progress.step(f"Compiling rank 1 of {self._ranks}")

    def feed(self, line: str) -> None:
        message = _PREFIX.sub("", line).strip()
        self.disk_full = self.disk_full or _FULL in message
        if _ERROR.match(message) and not (self.reason and _ELSEWHERE in message):
            self.reason = message[:_MAX_REASON]
        elif logged := _LOGGED_ERROR.search(line):
            self.reason = logged[1].strip()[:_MAX_REASON]
        if serialized := _SERIALIZING.search(message):
            rank = int(serialized[1])
            self._progress.step(f"Writing rank {rank + 1} of {self._ranks}")
            if rank + 1 < self._ranks:
                self._progress.step(f"Compiling rank {rank + 2} of {self._ranks}")
        for pattern, sentence in _STEP_PATTERNS:
            if pattern.search(message):
                self._progress.step(sentence)


LOG = "build.log"
_GUARD = Path(__file__).with_name("child_guard.py")
_KILLED = 128 + signal.SIGKILL
_STEP_MESSAGES = {
    "convert": "Converting the checkpoint",
    "quantize": "Quantizing the checkpoint",
    "build": "Building the engine",
}


@contextlib.contextmanager
def logging_to(out: Path) -> Iterator[Log]:
    """Yield a log file that is kept after a failure and moved into `out` after success."""
    log = Log()
    try:
        yield log
    except BuildError:
        # The error's message names the log.
        log.close()
        raise
    except BaseException:
        log.close()
        log.path.unlink()
        raise
    log.close()
    log.move_to(out / LOG)


class Log:
    """A log of the programs' output and command lines. A full disk ends the log, not the build."""

    def __init__(self) -> None:
        descriptor, path = tempfile.mkstemp(prefix="inflight-build-", suffix=".log")
        self.path = Path(path)
        self._file: IO[str] = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def move_to(self, path: Path) -> None:
        path.write_bytes(self.path.read_bytes())
        self.path.unlink()


def run_command(
    command: Command,
    programs: Programs,
    environment: Mapping[str, str],
    paths: list[Path],
    ranks: int,
    log: Log,
    progress: BuildProgress,
) -> None:
    """Run `command`; `paths` are the directories that it reads or writes, `ranks` the ranks that it builds.

    Raises BuildError: `disk_full`, or `build_failed` with the program's last error and the log's path.
    """
    listener = OutputParser(command.step, ranks, progress)
    program = programs.line(command, environment, paths)
    log.write(f"$ {command.shell()}")
    listener.start(_STEP_MESSAGES[command.step])
    with _guarded(
        program, programs.stop_command, os.environ | dict(environment) | dict(command.environment)
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line.rstrip("\n"))
            listener.feed(line)
        code = process.wait()
    if code == 0:
        return
    name = next((Path(part).name for part in command.arguments if part.endswith(".py")), command.arguments[0])
    if listener.disk_full:
        raise BuildError(
            f"A disk became full while {name} ran, which writes beside --out and to the directory for"
            f" temporary files. Free space or choose another --out; see {log.path}.",
            "disk_full",
        )
    reason = listener.reason or f"it ended with {code}"
    if code == _KILLED:
        reason = "it was killed, most likely because memory ran out"
    raise BuildError(f"{name} failed ({reason}); see {log.path}.", "build_failed")


@contextlib.contextmanager
def _guarded(
    line: Sequence[str], end: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start `line` under child_guard.py, in a new session, so that Ctrl-C reaches only this process.

    Python is isolated (-I), so that this process's packages do not shadow those of the programs.
    """
    guard = [sys.executable, "-I", str(_GUARD), json.dumps(list(end)), *line]
    with child_process(guard, subprocess.STDOUT, dict(environment) | {"PYTHONUNBUFFERED": "1"}) as process:
        try:
            yield process
        finally:
            if process.poll() is None and end:
                subprocess.run(list(end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

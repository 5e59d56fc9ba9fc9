"""A process that has imported the command, and forks a job process for each line of its input: a start costs little.

A job process is the command itself (`inflight batch ...`), in a separate process that can be killed.
Lines of JSON come in: {"arguments", "environment", "output", "points"} starts one, {"pid", "signal"} sends one a
signal. Lines of JSON go out: {"pid"} of the one that was started, {"pid", "status"} of one that ended.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections import Counter
from typing import Any, NoReturn

from inflight import cli
from inflight.batch import failpoints
from tests.batch.crash import history

_IMPORTED = ("runner", "sources.jsonl", "sources.sql", "outputs.sql", "outputs.file", "verify.checker")
_LIBRARIES = ("fsspec.implementations.local", "google.protobuf.descriptor_pool", "ml_dtypes", "numpy", "rapidjson")
"""Those of a job without gRPC, which may not be forked."""
_COMMANDS = ("batch.group", "batch.run", "batch.resume", "batch.retry")
_children: set[int] = set()


class _Noted(dict[str, tuple[int, str]]):
    """Armed points that note which are reached, and how often, into a file at the end."""

    def __init__(self, armed: dict[str, tuple[int, str]], path: str) -> None:
        super().__init__(armed)
        self._reached: Counter[str] = Counter()
        atexit.register(self._write, path)

    def __contains__(self, name: object) -> bool:
        self._reached[str(name)] += 1
        return super().__contains__(name)

    def _write(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self._reached, file)


def main() -> None:
    parts = (*(f"batch.{module}" for module in _IMPORTED), *(f"commands.{module}" for module in _COMMANDS))
    for name in (*(f"inflight.{part}" for part in parts), *_LIBRARIES):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, _reap)
    for line in sys.stdin:
        asked = json.loads(line)
        if "signal" not in asked:
            _start(asked)
        elif asked["pid"] in _children:  # one that was not reaped still has its number for itself
            os.kill(asked["pid"], asked["signal"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in _children:
        os.kill(pid, signal.SIGKILL)


def _start(asked: dict[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if not pid:
        _live(asked)
    _children.add(pid)
    _say(pid=pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _reap(number: int, frame: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _children.discard(ended[0])
            _say(pid=ended[0], status=os.waitstatus_to_exitcode(ended[1]))


def _say(**values: int) -> None:
    os.write(1, json.dumps(values).encode() + b"\n")


def _live(asked: dict[str, Any]) -> NoReturn:
    code: Any = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(asked["environment"])
        if "file_size" in asked:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked["file_size"], resource.RLIM_INFINITY))
        if history.VARIABLE in asked["environment"]:
            history.record(asked["environment"][history.VARIABLE])
        failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
        if asked["points"]:
            failpoints._ARMED = _Noted(failpoints._ARMED, asked["points"])
        cli.main(asked["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()

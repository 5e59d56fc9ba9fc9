"""Streams held open in threads, and what became of each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import psutil
from inflight_client import NO_RETRY, Client, InflightError, Sampling

SOON = 60.0
"""Seconds within which what must happen at once has happened, on a slow and busy machine too. ENDLESS streams and the
drains of these tests last longer by far, so what only came with their end would be noticed."""


@dataclass
class Stream:
    """One streamed request. `began` is set with its first delta, `ended` with its end or its error."""

    address: str
    max_tokens: int
    model: str = "ensemble"
    deltas: int = 0
    finish_reason: str | None = None
    error: InflightError | None = None
    began: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def whole(self) -> bool:
        """Whether it came to its full length, and nothing is missing."""
        return (self.error, self.finish_reason) == (None, "length")

    def start(self) -> Stream:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        try:
            with Client(self.address, self.model, retry=NO_RETRY) as client:
                # An answer that may not end early keeps its stream open for as long as the test needs it.
                sampling = Sampling(min_tokens=self.max_tokens)
                for delta in client.stream("a long story", max_tokens=self.max_tokens, sampling=sampling):
                    self.deltas += 1
                    self.finish_reason = delta.finish_reason
                    self.began.set()
        except InflightError as error:
            self.error = error
        finally:
            self.ended.set()


def open_streams(address: str, count: int, max_tokens: int, model: str = "ensemble") -> list[Stream]:
    """Start `count` streams and return when each has received something."""
    streams = [Stream(address, max_tokens, model).start() for _ in range(count)]
    for stream in streams:
        assert stream.began.wait(SOON), f"no first delta within {SOON:.0f} s: {stream}"
    return streams


def wait_until(true: Callable[[], bool], seconds: float = SOON) -> None:
    """Return once it is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"it did not come to it within {seconds:.0f} s"
        time.sleep(0.05)


def outliving(processes: Iterable[psutil.Process], seconds: float = SOON) -> list[psutil.Process]:
    """Those that still run after `seconds`. A dead process that nobody has reaped yet holds nothing."""
    left, end = list(processes), time.monotonic() + seconds
    while (left := [process for process in left if _runs(process)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

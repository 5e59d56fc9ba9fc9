"""Streams held open in threads, and what became of each of them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from inflight_client import Client, InflightError, Sampling


@dataclass
class Stream:
    """One streamed request. `began` is set with its first delta, `ended` with its end or its error."""

    address: str
    max_tokens: int
    deltas: int = 0
    finish_reason: str | None = None
    error: InflightError | None = None
    ended_at: float = 0.0
    began: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> Stream:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        try:
            with Client(self.address) as client:
                # An answer that may not end early keeps its stream open for as long as the test needs it.
                sampling = Sampling(min_tokens=self.max_tokens)
                for delta in client.stream("a long story", max_tokens=self.max_tokens, sampling=sampling):
                    self.deltas += 1
                    self.finish_reason = delta.finish_reason
                    self.began.set()
        except InflightError as error:
            self.error = error
        finally:
            self.ended_at = time.monotonic()
            self.ended.set()


def open_streams(address: str, count: int, max_tokens: int) -> list[Stream]:
    """Start `count` streams and return when each has received something."""
    streams = [Stream(address, max_tokens).start() for _ in range(count)]
    for stream in streams:
        assert stream.began.wait(30), f"no first delta within 30 s: {stream}"
    return streams

"""Whether a server that says it is ready still makes tokens.

A busy server must never be taken for a dead one, however slow it is. So only this counts as death: not one
piece of text came out for a long time, a request of our own went in and stayed without an answer, and
meanwhile the server's processes hardly used the processor. (One that spins without a result gets fifteen
times as long.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from inflight.deploy.probe import Probe, ProbeError

_SPINNING_FACTOR = 15
_IDLE_SHARE = 0.05


@dataclass(frozen=True)
class Patience:
    """In seconds: how often to look, how long without text before asking for a token, how long to wait.

    `start_idle` is how long a start may use neither the processor nor a disk.
    """

    look_every: float = 10.0
    ask_after: float = 60.0
    answer_within: float = 120.0
    start_idle: float = 20.0


class Pulse:
    """Watches one life of a server. `check` is cheap and may be called as often as one likes."""

    def __init__(self, probe: Probe, cpu_seconds: Callable[[], float], patience: Patience) -> None:
        self._probe = probe
        self._cpu_seconds = cpu_seconds
        self._patience = patience
        self._next_look = time.monotonic() + patience.look_every
        self._chunks: int | None = None
        self._still_since = time.monotonic()
        self._asked: threading.Thread | None = None
        self._asked_at = 0.0
        self._cpu_then = 0.0

    def check(self) -> str | None:
        """In words, why the server counts as dead; None while it does not."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + self._patience.look_every
        chunks = self._probe.chunks()
        if chunks is not None and chunks != self._chunks:
            self._chunks, self._still_since, self._asked_at = chunks, now, 0.0
            return None
        if now - self._still_since < self._patience.ask_after:
            return None
        if not self._asked_at:
            self._asked_at, self._cpu_then = now, self._cpu_seconds()
        if self._asked is None or not self._asked.is_alive():
            self._asked = threading.Thread(target=self._ask, name="canary", daemon=True)
            self._asked.start()
        waited = now - self._asked_at
        used = self._cpu_seconds() - self._cpu_then
        spins = used > waited * _IDLE_SHARE
        if waited < self._patience.answer_within * (_SPINNING_FACTOR if spins else 1):
            return None
        return f"the server says it is ready, but has generated nothing for {now - self._still_since:.0f} s"

    def _ask(self) -> None:
        try:
            self._probe.generate(self._patience.answer_within * _SPINNING_FACTOR)
        except ProbeError:
            time.sleep(self._patience.look_every)  # no answer that counts; asked again at the next look

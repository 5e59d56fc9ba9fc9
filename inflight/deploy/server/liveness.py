"""Detects a server that reports to be ready but answers nothing.

A busy server must never count as dead, however slow it is. A server therefore counts as dead only if the models of one
of its tasks gave no answer for a long time, a probe request was not answered, and their processes hardly used the
processor meanwhile. (Models that use the processor without a result get fifteen times as long.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from inflight.deploy.repository.model_names import ENCODER_MODELS, Task
from inflight.deploy.server.probe import Probe, ProbeError

_SPINNING_FACTOR = 15
_IDLE_CPU_FRACTION = 0.05


@dataclass(frozen=True)
class LivenessTimeouts:
    """In seconds: interval of checks, time without answers before a probe request, timeout of that request.

    `start_idle_timeout` is how long a start may use neither the processor nor a disk.
    """

    check_interval: float = 10.0
    idle_before_probe: float = 60.0
    probe_timeout: float = 120.0
    start_idle_timeout: float = 20.0


class LivenessMonitor:
    """Monitors the models of one task in a server instance. `check` is cheap and may be called often."""

    def __init__(self, probe: Probe, task: Task, cpu_seconds: Callable[[], float], timeouts: LivenessTimeouts) -> None:
        self._probe = probe
        self._task = task
        self._cpu_seconds = cpu_seconds
        self._timeouts = timeouts
        self._next_check = time.monotonic() + timeouts.check_interval
        self._answers: int | None = None
        self._idle_since = time.monotonic()
        self._probe_thread: threading.Thread | None = None
        self._probe_started_at = 0.0
        self._cpu_at_probe = 0.0

    def check(self) -> str | None:
        """Return why the server counts as dead, in words; None while it is live."""
        now = time.monotonic()
        if now < self._next_check:
            return None
        self._next_check = now + self._timeouts.check_interval
        answers = self._probe.answer_count(self._task)
        if answers is not None and answers != self._answers:
            self._answers, self._idle_since, self._probe_started_at = answers, now, 0.0
            return None
        if now - self._idle_since < self._timeouts.idle_before_probe:
            return None
        if not self._probe_started_at:
            self._probe_started_at, self._cpu_at_probe = now, self._cpu_seconds()
        if self._probe_thread is None or not self._probe_thread.is_alive():
            self._probe_thread = threading.Thread(target=self._send_probe, name="liveness-probe", daemon=True)
            self._probe_thread.start()
        waited = now - self._probe_started_at
        used = self._cpu_seconds() - self._cpu_at_probe
        spins = used > waited * _IDLE_CPU_FRACTION
        if waited < self._timeouts.probe_timeout * (_SPINNING_FACTOR if spins else 1):
            return None
        idle = f"for {now - self._idle_since:.0f} s"
        if self._task == "generate":
            return f"the server reports to be ready but has generated nothing {idle}"
        return f"the server reports to be ready but its model {ENCODER_MODELS[self._task]} has answered nothing {idle}"

    def _send_probe(self) -> None:
        try:
            self._probe.ask(self._task, self._timeouts.probe_timeout * _SPINNING_FACTOR)
        except ProbeError:
            time.sleep(self._timeouts.check_interval)  # no valid answer; the next check sends another request

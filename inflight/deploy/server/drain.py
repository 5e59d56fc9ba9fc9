"""Stops a server without cutting an answer short.

At SIGTERM, Triton stops its models at once, which cuts every gRPC stream without an error. Unloading the models that
take text instead refuses new requests with a clear error, makes the server not ready, and lets running requests finish.
A cancelled stream of the ensemble never ends inside Triton 2.51, so an idle server also counts as drained.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from inflight.deploy.repository.configure import BLS_MODEL
from inflight.deploy.server.probe import Probe, ProbeError

_IDLE_SECONDS = 2.0
_IDLE_CPU_FRACTION = 0.05


class IdleDetector:
    """Detects an idle server: no new text, and hardly any processor time used."""

    def __init__(self, probe: Probe, cpu_seconds: Callable[[], float]) -> None:
        self._probe = probe
        self._cpu_seconds = cpu_seconds
        self._restart()

    def is_idle(self) -> bool:
        """Return True once the last two seconds were idle; cheap."""
        if time.monotonic() - self._since < _IDLE_SECONDS:
            return False
        chunks, used = self._chunks, self._cpu_used
        seconds = time.monotonic() - self._since
        self._restart()
        return chunks is not None and chunks == self._chunks and self._cpu_used - used < seconds * _IDLE_CPU_FRACTION

    def _restart(self) -> None:
        self._since = time.monotonic()
        self._chunks = self._probe.chunk_count()
        self._cpu_used = self._cpu_seconds()


def drain(
    probe: Probe, models: list[str], seconds: float, force: Callable[[], bool], cpu_seconds: Callable[[], float]
) -> bool:
    """Unload `models` and wait until their requests have ended; return whether all did in time.

    The last model is the engine's, which the others call; it is unloaded once they have ended. `force` is polled and
    may end the wait before `seconds`. `cpu_seconds` returns what the server's processes have used so far.
    """
    deadline = time.monotonic() + seconds
    rest = IdleDetector(probe, cpu_seconds)
    try:
        for group in (models[:-1], models[-1:]):
            for model in group:
                probe.unload(model)
            for model in group:
                while not probe.unloaded(model):
                    # Triton's text counters don't show the scripted model's work, which always ends.
                    if model != BLS_MODEL and rest.is_idle():
                        break
                    if time.monotonic() > deadline or force():
                        return False
                    time.sleep(0.05)
    except ProbeError:
        return False  # the server has exited, or does not answer any more
    return True

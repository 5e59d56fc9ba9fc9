"""Stops a server without cutting an answer short.

At SIGTERM, Triton stops its models at once, which cuts every gRPC stream without an error. Unloading the models that
clients call instead refuses new requests with a clear error, makes the server not ready, and lets running requests
finish.
A cancelled stream of the ensemble never ends inside Triton 2.51, so an idle server also counts as drained.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from inflight.deploy.repository.model_names import ENCODER_MODELS, ENGINE_MODEL, ENTRY_MODELS
from inflight.deploy.server.probe import Probe, ProbeError

_IDLE_SECONDS = 2.0
_IDLE_CPU_FRACTION = 0.05


class IdleDetector:
    """Detects an idle server: no new answer, and hardly any processor time used."""

    def __init__(self, probe: Probe, cpu_seconds: Callable[[], float]) -> None:
        self._probe = probe
        self._cpu_seconds = cpu_seconds
        self._restart()

    def is_idle(self) -> bool:
        """Return True once the last two seconds were idle; cheap."""
        if time.monotonic() - self._since < _IDLE_SECONDS:
            return False
        answers, used = self._answers, self._cpu_used
        seconds = time.monotonic() - self._since
        self._restart()
        return answers is not None and answers == self._answers and self._cpu_used - used < seconds * _IDLE_CPU_FRACTION

    def _restart(self) -> None:
        self._since = time.monotonic()
        self._answers = self._probe.total_count()
        self._cpu_used = self._cpu_seconds()


def drain(probe: Probe, seconds: float, force: Callable[[], bool], cpu_seconds: Callable[[], float]) -> bool:
    """Unload the models of all tasks and wait until their requests have ended; return whether all did in time.

    `tensorrt_llm`, which other models call, is unloaded once those have ended. `force` is polled and may end the wait
    before `seconds`. `cpu_seconds` returns what the server's processes have used so far.
    """
    callers = [model for task in probe.tasks for model in ENTRY_MODELS[task]]
    called = [ENGINE_MODEL] if "generate" in probe.tasks else []
    deadline = time.monotonic() + seconds
    rest = IdleDetector(probe, cpu_seconds)
    try:
        for group in (callers, called):
            for model in group:
                probe.unload(model)
            for model in group:
                while not probe.unloaded(model):
                    # The counters don't show the work of these models, which always ends.
                    if model not in ENCODER_MODELS.values() and rest.is_idle():
                        break
                    if time.monotonic() > deadline or force():
                        return False
                    time.sleep(0.05)
    except ProbeError:
        return False  # the server has exited, or does not answer any more
    return True

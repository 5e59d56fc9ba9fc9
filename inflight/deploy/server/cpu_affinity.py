"""Who runs on which cores, where the engine computes on the processor.

Every token passes through four processes in a row. Where each of them wakes another on a core of its own, the
wake-up costs more than the work, most of all in a virtual machine; and each wake-up takes a core away from the
engine's forward pass. So the server's own processes keep together on few cores, and don't preempt who computes
there; the engine has all cores. See docs/internals/measurements.md for what that gains.
"""

from __future__ import annotations

import os
import random

SERVER_CORES = "INFLIGHT_SERVER_CORES"
"""For the guard: the cores of tritonserver and its stubs, as a list."""

ENGINE_CORES = "INFLIGHT_ENGINE_CORES"
"""For the engine's process, which would inherit the server's otherwise."""

_ENGINE_CORES_PER_SERVER_CORE = 8


def affinity_environment(allowed: set[int] | None = None) -> dict[str, str]:
    """The environment that says it: one core for every eight that this process may use, at least one.

    Which ones is drawn each time: else all servers of a machine would crowd on the same.
    """
    cores = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    few = max(1, len(cores) // _ENGINE_CORES_PER_SERVER_CORE)
    begin = random.randrange(0, len(cores) - few + 1, few)
    return {SERVER_CORES: _as_list(cores[begin : begin + few]), ENGINE_CORES: _as_list(cores)}


def _as_list(cores: list[int]) -> str:
    return ",".join(map(str, cores))

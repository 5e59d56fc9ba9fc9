"""Assigns processes to cores if the engine computes on the CPU.

Every token passes through four processes in a row. If each of them wakes another one on a different core, the wake-up
costs more than the work, especially in a virtual machine, and takes a core away from the engine's forward pass. So the
server's processes share few cores and don't preempt the engine, which may use all cores. See
docs/internals/measurements.md for the effect.
"""

from __future__ import annotations

import os
import random

SERVER_CORES = "INFLIGHT_SERVER_CORES"
"""For the guard: the cores of tritonserver and its stubs, as a list."""

ENGINE_CORES = "INFLIGHT_ENGINE_CORES"
"""For the engine's process, which would otherwise inherit the server's."""

_ENGINE_CORES_PER_SERVER_CORE = 8


def affinity_environment(allowed: set[int] | None = None) -> dict[str, str]:
    """Return environment variables that assign one of every eight available cores to the server, at least one.

    The choice is random, so that the servers of a machine don't share the same cores.
    """
    cores = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    few = max(1, len(cores) // _ENGINE_CORES_PER_SERVER_CORE)
    begin = random.randrange(0, len(cores) - few + 1, few)
    return {SERVER_CORES: _as_list(cores[begin : begin + few]), ENGINE_CORES: _as_list(cores)}


def _as_list(cores: list[int]) -> str:
    return ",".join(map(str, cores))

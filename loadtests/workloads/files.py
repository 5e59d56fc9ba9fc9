"""The files that a workload names, read once, where the run is asked for."""

from __future__ import annotations

from loadtests.workloads.spec import WorkloadSpec


def load_files(spec: WorkloadSpec) -> dict[str, bytes]:
    """The content of each file that the spec names, by that name. Raises LoadError for one that can't be read."""
    return {}

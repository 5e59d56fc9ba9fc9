"""Collects the metadata of a run: where and when it ran, and against what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from inflight_client import Client
from inflight_client.errors import InflightError

from loadtests.connection import find_model
from loadtests.plan import LoadPlan

_PACKAGES = ("inflight", "locust", "gevent", "grpcio", "tritonclient", "numpy")


def collect_metadata(plan: LoadPlan, client: Client) -> dict[str, Any]:
    """Collect what is known before the first request. Raises InflightError if the server is not ready."""
    found = find_model(plan, client)
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "deployment": {"kind": found.kind, "model": found.name, "version": found.version},
        "served": dict(found.facts),
        "models": _models(client),
        "machine": describe_machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "server": plan.server,
    }


def describe_machine() -> dict[str, Any]:
    """Describe the machine that generates the load."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _models(client: Client) -> list[dict[str, str]]:
    """Return the server's models; none if it does not list them."""
    try:
        return [{"name": model.name, "version": model.version, "state": model.state} for model in client.models()]
    except InflightError:
        return []


def _processor() -> str:
    """Return the processor's name from Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

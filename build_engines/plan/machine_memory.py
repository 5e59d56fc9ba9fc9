"""The available memory of this machine, for a plan of the embedded engine."""

from __future__ import annotations

import re
from pathlib import Path


def available_bytes(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the available bytes of the machine, or of its container if that has a lower limit."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    assert match, "Linux reports MemAvailable since 3.14"
    machine = int(match[1]) * 1024
    try:
        left = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):
        # No such cgroup, or its limit is "max".
        return machine
    return max(0, min(machine, left))

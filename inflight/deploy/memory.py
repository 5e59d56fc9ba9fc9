"""Available memory: the machine's, or less if a container's limit is lower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
# Without a limit, cgroup version 1 has a number close to 2**63.
_NO_LIMIT = 1 << 60


def available_bytes(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes that are available to the machine and to each control group of this process.

    A group's page cache counts as available, as it does for the machine.
    """
    return max(0, min([psutil.virtual_memory().available, *_available_in_groups(cgroups, own)]))


def _available_in_groups(cgroups: Path, own: Path) -> Iterator[int]:
    try:
        memberships = own.read_text().splitlines()
    except OSError:
        return
    for line in memberships:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, limit, used, prefix = cgroups, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            root, limit, used, prefix = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        # Inside a container, the name may be the host's, which does not exist here: then the root is the group.
        group = PurePosixPath(name.lstrip("/"))
        for directory in {root / group, *(root / parent for parent in group.parents)}:
            left = _available_in_group(directory / limit, directory / used, directory / "memory.stat", prefix)
            if left is not None:
                yield left


def _available_in_group(limit: Path, used: Path, stat: Path, prefix: str) -> int | None:
    """Return what one group may still use; None if it has no limit."""
    try:
        most = limit.read_text().strip()
        if most == "max" or int(most) >= _NO_LIMIT:
            return None
        counters = dict(line.split() for line in stat.read_text().splitlines())
        files = sum(int(counters.get(f"{prefix}{state}_file", 0)) for state in ("active", "inactive"))
        return int(most) - int(used.read_text()) + files
    except (OSError, ValueError):
        return None

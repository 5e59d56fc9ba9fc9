from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from inflight.deploy.memory import available_bytes

LIMIT, USED, FILES = 50 << 20, 30 << 20, 10 << 20
LEFT = LIMIT - USED + FILES


@pytest.mark.parametrize(
    ("membership", "group", "limit", "used", "prefix"),
    [
        ("0::/pod/box", "pod/box", "memory.max", "memory.current", ""),
        ("0::/pod/box", "pod", "memory.max", "memory.current", ""),
        ("0::/", "", "memory.max", "memory.current", ""),
        ("5:cpu:/\n4:hugetlb,memory:/box", "memory/box", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        # a container that sees its host's name, but its own group as the root
        ("4:memory:/docker/0123", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ],
)
def test_a_containers_limit_counts(
    tmp_path: Path, membership: str, group: str, limit: str, used: str, prefix: str
) -> None:
    directory = tmp_path / "groups" / group
    directory.mkdir(parents=True)
    (directory / limit).write_text(f"{LIMIT}\n")
    (directory / used).write_text(f"{USED}\n")
    (directory / "memory.stat").write_text(f"anon 5\n{prefix}inactive_file {FILES - 4096}\n{prefix}active_file 4096\n")
    own = tmp_path / "own"
    own.write_text(f"{membership}\n")
    assert available_bytes(tmp_path / "groups", own) == LEFT


@pytest.mark.parametrize("most", ["max", str((1 << 63) - 4096), "nonsense"])
def test_without_a_limit_it_is_the_machines(tmp_path: Path, most: str) -> None:
    (tmp_path / "memory.max").write_text(most)
    (tmp_path / "memory.current").write_text(str(USED))
    (tmp_path / "memory.stat").write_text("")
    own = tmp_path / "own"
    own.write_text("0::/\n")
    before = psutil.virtual_memory().available
    available = available_bytes(tmp_path, own)
    after = psutil.virtual_memory().available
    assert 0.8 * min(before, after) <= available <= 1.2 * max(before, after)

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.plan.machine_memory import available_bytes

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO)
    return path


def test_it_is_what_the_machine_has_available(meminfo: Path, tmp_path: Path) -> None:
    assert available_bytes(meminfo, tmp_path / "nowhere") == 8_000_000 * 1024


@pytest.mark.parametrize(
    ("most", "used", "left"),
    [("4096000000", "1096000000", 3_000_000_000), ("max", "1096000000", 8_192_000_000), ("1000", "2000", 0)],
)
def test_a_containers_limit_counts_where_it_is_lower(
    meminfo: Path, tmp_path: Path, most: str, used: str, left: int
) -> None:
    (tmp_path / "memory.max").write_text(most)
    (tmp_path / "memory.current").write_text(used)
    assert available_bytes(meminfo, tmp_path) == left


def test_this_machine_has_some() -> None:
    assert 2**20 < available_bytes() < 2**50

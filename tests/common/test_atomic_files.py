"""A file that is replaced stays as it was until the new one is whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from inflight.common.atomic_files import write_atomic


@pytest.mark.parametrize(("mode", "found"), [(None, 0o644), (0o600, 0o600)])
def test_the_text_is_there_with_the_mode_that_is_wanted(tmp_path: Path, mode: int | None, found: int) -> None:
    path = tmp_path / "talk.json"
    path.write_text("old")
    path.chmod(0o644)
    write_atomic(path, "お茶", mode=mode or 0o666, keep_mode=mode is None)
    assert path.read_text(encoding="utf-8") == "お茶"
    assert stat.S_IMODE(path.stat().st_mode) == found


def test_a_new_file_is_its_owners(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("n" * 255), "tea", mode=0o600)  # a name as long as names may be
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]


def test_what_fails_leaves_the_old_one_and_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talk.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "talk.json")
    write_atomic(tmp_path / "link", "tea")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "talk.json").read_text() == "tea"

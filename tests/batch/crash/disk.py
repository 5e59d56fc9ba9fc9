"""What a power cut would leave on a disk, by a record of what a process asks of it: writes, fsync, renames, commits."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.state.line_file import merge_path

_FULL = 2
"""What `PRAGMA synchronous` gives for FULL: a commit is on the disk when it returns."""
_NOT_KEPT = ("progress.json", "lock", "cancel")
"""Files of a job that may be missing after a power cut. SQLite syncs its own files, and the names of these."""


class Disk:
    """A file's bytes last once its descriptor was synced, a name once its directory was; nothing else does.

    Each commit of a job's state is held against that: `faults` are the commits, and the renames, that promise more than
    a power cut at that moment would leave; `also` says what else is wrong with what one commits, or nothing. `commits`:
    how many were looked at.
    """

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, also: Callable[[dict[str, Any]], str] = lambda values: ""
    ):
        self.faults: list[str] = []
        self.commits = 0
        self._root, self._also = root, also
        self._content: dict[int, bytes] = {}
        self._names: dict[Path, int] = {}
        self._real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "truncate", "link")}
        for name in self._real:
            monkeypatch.setattr(os, name, getattr(self, f"_{name}"))
        connect = sqlite3.connect

        def connecting(database: Any, **options: Any) -> sqlite3.Connection:
            if Path(str(database)).name == "state.db" and not options.get("uri"):
                options["factory"] = self._watched(Path(database).parent)
            opened: sqlite3.Connection = connect(database, **options)
            return opened

        monkeypatch.setattr(sqlite3, "connect", connecting)

    def settle(self) -> None:
        """All that is there now is on the disk, as it is long after it was written."""
        for path in (self._root, *self._root.rglob("*")):
            self._synced(path)

    def lasting(self, path: Path, length: int | None = None) -> bool:
        """Whether that file, with its first bytes or all of them, is found after a power cut."""
        try:
            now, node = path.read_bytes(), path.stat().st_ino
        except OSError:
            return False
        content = now[:length]
        whole = length is None or len(now) >= length
        return whole and self._content.get(node, b"")[: len(content)] == content and self._named(path)

    def check_all(self, what: str) -> None:
        """Everything that the job has made, and nothing that it has removed."""
        there = {path for path in self._root.rglob("*") if not self._passing(path)}
        for path in there:
            if not (self._named(path) if path.is_dir() else self.lasting(path)):
                self.faults.append(f"{what}: {path.name} is not on the disk")
        for path in self._names.keys() - there:
            if not self._passing(path):
                self.faults.append(f"{what}: {path.name} would come back")

    def _passing(self, path: Path) -> bool:
        return path.name in _NOT_KEPT or ".db" in path.name or path == self._root

    def _named(self, path: Path) -> bool:
        """Whether a name lasts, and those of all folders that it is in."""
        if path == self._root:
            return True
        return self._names.get(path) == path.stat().st_ino and self._named(path.parent)

    def _synced(self, path: Path) -> None:
        if not path.is_dir():
            self._content[path.stat().st_ino] = path.read_bytes()
            return
        if not path.is_relative_to(self._root):
            return
        for old in [name for name in self._names if name.parent == path]:
            del self._names[old]
        for name in path.iterdir():
            self._names[name] = name.stat().st_ino

    def _fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        self._synced(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def _replace(self, source: Any, target: Any, **options: Any) -> None:
        source, target = Path(source), Path(target)
        if self._content.get(source.stat().st_ino, b"") != source.read_bytes():
            self.faults.append(f"{target.name} gets its name before its bytes are on the disk")
        if target.name == "state.db":  # brought from another machine
            self._check_lines(JobDirectory.find(target.parent), _said(source), "a state that was fetched")
        elif source.name.startswith(".fetching-") and self._names.get(target.with_name("state.db")):
            self.faults.append(f"{target.name} would lie beside an old state")
        self._forget(target)
        self._real["replace"](source, target, **options)

    def _unlink(self, path: Any, **options: Any) -> None:
        self._forget(Path(path))
        self._real["unlink"](path, **options)

    def _forget(self, path: Path) -> None:
        """Its number may become another file's."""
        if path.exists() and path.stat().st_nlink == 1:
            self._content.pop(path.stat().st_ino, None)

    def _truncate(self, path: Any, length: int) -> None:
        self._real["truncate"](path, length)
        node = Path(path).stat().st_ino
        self._content[node] = self._content.get(node, b"")[:length]

    def _link(self, source: Any, target: Any, **options: Any) -> None:
        if self._content.get(Path(source).stat().st_ino, b"") != Path(source).read_bytes():
            self.faults.append(f"{Path(target).name} gets its name before its bytes are on the disk")
        self._real["link"](source, target, **options)

    def _watched(self, job: Path) -> type[sqlite3.Connection]:
        disk = self

        class Watched(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if sql == "COMMIT":
                    level = super().execute("PRAGMA synchronous").fetchone()[0]
                    meta = dict(super().execute("SELECT name, value FROM meta").fetchall())
                    disk._check(job, level, {name: json.loads(value) for name, value in meta.items()})
                return super().execute(sql, *values)

        return Watched

    def _check(self, job: Path, level: int, values: dict[str, Any]) -> None:
        """A commit is about to be made, by which the job is so far."""
        self.commits += 1
        if level != _FULL:
            self.faults.append(f"a commit does not wait for the disk: synchronous is {level}")
        if (job / "job.json").exists():  # else it is not begun
            self._check_lines(JobDirectory.find(job), values, f"commit {self.commits}")
        if values.get("finished"):
            self.check_all("the commit that says finished")
        if fault := self._also(values):
            self.faults.append(fault)

    def _check_lines(self, directory: JobDirectory, values: dict[str, Any], what: str) -> None:
        lengths = values.get("checkpoint", {}).get("lengths", {})
        for kind, length in lengths.items():
            path = directory.result_file(RowStatus(kind))
            merged = bool(values.get("renames")) and merge_path(path).exists()
            path = merge_path(path) if merged else path
            if (length or merged) and not self.lasting(path, length):
                self.faults.append(f"{what} counts {length} bytes of {path.name} that are not on the disk")
        if any(lengths.values()) and not self.lasting(directory.path / "job.json"):
            self.faults.append(f"{what} counts rows of a job whose job.json is not on the disk")


def _said(state: Path) -> dict[str, Any]:
    with sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True) as database:
        values = {name: json.loads(value) for name, value in database.execute("SELECT name, value FROM meta")}
    database.close()
    return values

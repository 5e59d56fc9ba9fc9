"""A job's state beside its output on a storage, so that another machine can go on where this one was lost."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from inflight.batch.addresses import is_database, is_local
from inflight.batch.destinations.whole import beside
from inflight.batch.errors import BatchError, writing
from inflight.batch.failpoints import reach
from inflight.batch.job import OutputSpec
from inflight.batch.job_directory import JobDirectory
from inflight.batch.row import Kind
from inflight.batch.state.line_file import make_directory, private, sync_directory
from inflight.batch.stored_objects import StoredObjects

LEASE_SECONDS = 300.0
"""How long a machine that says nothing is thought to be at work; the clocks of both must agree to a minute or so."""
RENEW_SECONDS = LEASE_SECONDS / 3
"""How often a machine at work says so, however seldom it sends the state, and however long that takes."""
PART_BYTES = 64 << 20
_MANIFEST = "manifest.json"
_LEAST_PAUSE = 60.0
_SHARE = 20.0
"""Sending may take a twentieth of the time."""
_AT_ONCE = 1 << 20


class Part(BaseModel):
    """An object with so many bytes of this hash."""

    model_config = ConfigDict(frozen=True)

    name: str
    size: int
    sha256: str


class Manifest(BaseModel):
    """What belongs together, and who has written it, when (seconds since 1970; 0: nobody is at work)."""

    model_config = ConfigDict(frozen=True)

    format: int = 1
    owner: str
    time: float
    job: str
    state: Part
    lines: dict[Kind, list[Part]]


class Carrier:
    """Takes a job's state to an address and back. The manifest is written last: until then all is as before.

    Raises BatchError: `job_elsewhere` where another machine has the job, `job_damaged`, those of storages and disks.
    """

    def __init__(self, address: str, directory: JobDirectory) -> None:
        self._objects, self._directory = StoredObjects(address), directory
        self._owned = self._tidied = False
        self._manifest = threading.Lock()
        """Around each look at the manifest and what is put in its place."""
        self._files: dict[Kind, int] = {}
        self._next = 0.0

    def fetch(self) -> bool:
        """Take the job over from the machine that had it, if there is one: whether its state was brought here.

        What this machine had is left as it is where it was the last to write.
        """
        manifest, tag = self._read()
        if manifest is None:
            return False
        if manifest.owner == self._owner and self._directory.state.exists():
            self._owned = True
            return False
        self._refuse(manifest)
        with writing(self._directory.path):
            self._forget()
            self._claim(manifest.model_copy(update={"owner": self._owner, "time": time.time()}), tag)
            for kind in Kind:
                self._bring(manifest.lines.get(kind, []), self._directory.lines(kind))
            self._directory.write(self._directory.path / "job.json", manifest.job)
            self._bring([manifest.state], self._directory.state)
        return True

    @property
    def due(self) -> bool:
        """Whether it is time to send again: each minute, or less often where sending takes long, or fails slowly."""
        return time.monotonic() >= self._next

    def send(self, snapshot: Callable[[Path], dict[Kind, int]], last: bool = False) -> None:
        """Bring there what is new. `snapshot` writes the state, and says how long the files of lines are by it.

        `last`: this machine stops here, and another need not wait for its lease to end.
        """
        began = time.monotonic()
        copy = self._directory.path / ".state.carried"
        try:
            with self._manifest:
                before, _ = self._read()
                if before is not None:
                    self._refuse(before)
            with writing(self._directory.path):
                copy.unlink(missing_ok=True)
                lengths = snapshot(copy)
                old = before.lines if before is not None else {}
                manifest = Manifest(
                    owner=self._owner,
                    time=0.0,
                    job=(self._directory.path / "job.json").read_text(encoding="utf-8"),
                    lines={kind: self._send_lines(kind, old.get(kind, []), lengths.get(kind, 0)) for kind in Kind},
                    state=self._send_state(copy),
                )
                with self._manifest:
                    latest, tag = self._read()  # renewed since, or another machine's by now
                    if latest is not None:
                        self._refuse(latest)
                    self._claim(manifest if last else manifest.model_copy(update={"time": time.time()}), tag)
                self._tidy(before, manifest)
        finally:
            copy.unlink(missing_ok=True)
            now = time.monotonic()
            self._next = now + max(_LEAST_PAUSE, (now - began) * _SHARE)

    def renew(self) -> None:
        """Say that this machine is still at work, where it is. Raises BatchError as `send` does."""
        with self._manifest:
            if self._owned:
                manifest, tag = self._read()
                if manifest is not None:
                    self._refuse(manifest)
                    self._claim(manifest.model_copy(update={"time": time.time()}), tag)

    def release(self) -> None:
        """Whatever ended the job here: another machine need not wait, and goes on with what was sent last."""
        with self._manifest:
            if not self._owned:
                return
            self._owned = False
            manifest, tag = self._read()
            if manifest is not None and manifest.owner == self._owner and manifest.time:
                self._claim(manifest.model_copy(update={"time": 0.0}), tag)

    @property
    def _owner(self) -> str:
        """A name for this directory on this disk; a copy fetched to another disk has another."""
        path = self._directory.path / "owner"
        if not path.exists():
            make_directory(self._directory.path)
            self._directory.write(path, secrets.token_hex(8))
        return path.read_text(encoding="utf-8")

    def _read(self) -> tuple[Manifest | None, str | None]:
        found = self._objects.read(_MANIFEST)
        if found is None:
            return None, None
        try:
            return Manifest.model_validate_json(found[0]), found[1]
        except ValidationError as error:
            raise BatchError(
                f"{self._objects.shown}/{_MANIFEST} is damaged ({error.error_count()} faults); remove"
                f" {self._objects.shown} to begin anew",
                "job_damaged",
            ) from None

    def _refuse(self, manifest: Manifest) -> None:
        if manifest.owner == self._owner:
            return
        if self._owned:
            raise BatchError(f"another machine has taken over the job at {self._objects.shown}", "job_elsewhere")
        silent = max(0.0, time.time() - manifest.time)
        if silent < LEASE_SECONDS:
            raise BatchError(
                f"another machine runs the job at {self._objects.shown}: it said so {silent:.0f} seconds ago; if it"
                f" is lost, the same command goes on from there in {math.ceil(LEASE_SECONDS - silent)} seconds",
                "job_elsewhere",
            )

    def _claim(self, manifest: Manifest, tag: str | None) -> None:
        reach("carry.manifest")
        if not self._objects.replace(_MANIFEST, manifest.model_dump_json(indent=1).encode(), tag):
            raise BatchError(f"another machine has begun to run the job at {self._objects.shown}", "job_elsewhere")
        self._owned = bool(manifest.time)
        reach("carry.manifest_written")

    def _forget(self) -> None:
        """What lies here is of an earlier time; without its state it is nothing."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self._directory.state}{suffix}").unlink(missing_ok=True)
        sync_directory(self._directory.path)  # else a power cut could leave the old state beside new lines
        reach("carry.forgotten")

    def _send_lines(self, kind: Kind, parts: list[Part], length: int) -> list[Part]:
        path = self._directory.lines(kind)
        if not length:
            return []
        with path.open("rb") as file:
            node = path.stat().st_ino
            if self._files.get(kind) != node:  # of another life, or made anew since: the parts may be of another text
                parts = _same(file, parts)
                self._files[kind] = node
            place = sum(part.size for part in parts)
            if place > length:
                parts, place = [], 0
            while place < length:
                parts = [*parts, self._send(f"{kind}-{len(parts):06d}", file, place, min(PART_BYTES, length - place))]
                place += parts[-1].size
        return parts

    def _send_state(self, copy: Path) -> Part:
        with copy.open("rb") as file:
            return self._send("state", file, 0, copy.stat().st_size)

    def _send(self, name: str, file: IO[bytes], place: int, size: int) -> Part:
        """Bring these bytes there, as an object that nobody else makes."""
        file.seek(place)
        part = _Bytes(file, size)
        name = f"{name}-{secrets.token_hex(4)}"
        reach("carry.part")
        self._objects.send(name, part)
        reach("carry.part_sent")
        if part.left:
            raise BatchError(f"{self._directory.path}: a file of lines is shorter than the state says", "job_damaged")
        return Part(name=name, size=size, sha256=part.sha256)

    def _tidy(self, before: Manifest | None, now: Manifest) -> None:
        """Remove what no manifest names any more; once a life also what deaths have left there."""
        kept = {_MANIFEST, *_names(now)}
        gone = set(_names(before)) if before is not None else set()
        if not self._tidied:
            gone |= set(self._objects.names())
        for name in sorted(gone - kept):
            reach("carry.remove")
            self._objects.remove(name)
        self._tidied = True

    def _bring(self, parts: list[Part], path: Path) -> None:
        """Fetch these into a file, whole; none make none."""
        if not parts:
            path.unlink(missing_ok=True)
            return
        make_directory(path.parent)
        making = path.with_name(f".fetching-{path.name}")
        opener = private if path == self._directory.state else None
        with open(making, "wb", opener=opener) as file:
            for part in parts:
                digest = hashlib.sha256()
                for block in self._objects.blocks(part.name):
                    digest.update(block)
                    file.write(block)
                if digest.hexdigest() != part.sha256:
                    raise BatchError(
                        f"{self._objects.shown}/{part.name} is damaged; remove {self._objects.shown} to begin anew",
                        "job_damaged",
                    )
            file.flush()
            os.fsync(file.fileno())
            reach("carry.fetched")
        making.replace(path)
        sync_directory(path.parent)
        reach("carry.placed")


def carried_to(output: OutputSpec) -> str | None:
    """Where the state of a job with this output is carried: beside it, on a storage. None for a disk or a database."""
    if is_local(output.address) or is_database(output.address) or output.format == "sql":
        return None
    return beside(output.address, "job")


class _Bytes:
    """So many bytes of a file as a file, hashed on their way."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.left = file, size
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def read(self, size: int = _AT_ONCE) -> bytes:
        data = self._file.read(min(size, self.left))
        self.left -= len(data)
        self._hash.update(data)
        return data


def _same(file: IO[bytes], parts: list[Part]) -> list[Part]:
    """Those of the first parts that the file has."""
    same: list[Part] = []
    file.seek(0)
    for part in parts:
        held = _Bytes(file, part.size)
        while held.left and held.read():
            pass
        if held.left or held.sha256 != part.sha256:
            break
        same.append(part)
    return same


def _names(manifest: Manifest) -> Iterator[str]:
    yield manifest.state.name
    yield from (part.name for parts in manifest.lines.values() for part in parts)

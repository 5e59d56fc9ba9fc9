"""Replicates a job's state beside its output in object storage, so that another machine can continue a lost job."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.failpoints import failpoint
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import OutputSpec
from inflight.batch.storage.addresses import is_database, is_local
from inflight.batch.storage.atomic_output import sibling_address
from inflight.batch.storage.object_store import ObjectStore
from inflight.common.atomic_files import atomic_writer, make_directory, sync

LEASE_SECONDS = 300.0
"""Seconds until a machine that does not renew its lease counts as lost; clocks must agree to about a minute."""
RENEW_SECONDS = LEASE_SECONDS / 3
"""Seconds between renewals, independent of uploads."""
PART_BYTES = 64 << 20
_MANIFEST = "manifest.json"
MIN_UPLOAD_INTERVAL = 60.0
_UPLOAD_TIME_FACTOR = 20.0
"""Maximum fraction of time for uploads."""
_READ_BYTES = 1 << 20


class RemoteObject(BaseModel):
    """An object with its size and hash."""

    model_config = ConfigDict(frozen=True)

    name: str
    size: int
    sha256: str


class RemoteManifest(BaseModel):
    """The objects that belong together, who has written them, and when (seconds since 1970; 0: no lease)."""

    model_config = ConfigDict(frozen=True)

    format: int = 1
    owner: str
    time: float
    job: str
    state: RemoteObject
    lines: dict[RowStatus, list[RemoteObject]]


class RemoteState:
    """Transfers a job's state to and from a storage. The manifest is written last; until then the old state is valid.

    Raises BatchError: `job_elsewhere` if another machine runs the job, `job_damaged`, those of storages and disks.
    """

    def __init__(self, address: str, directory: JobDirectory) -> None:
        self._objects, self._directory = ObjectStore(address), directory
        self._owned = self._cleaned_up = False
        self._manifest_lock = threading.Lock()
        """Held while the manifest is read and replaced."""
        self._inodes: dict[RowStatus, int] = {}
        self._next_upload = 0.0

    def fetch(self) -> bool:
        """Take over the job from the machine that had it; return whether its state was fetched.

        If this machine was the last to write, its own state is kept.
        """
        manifest, tag = self._read_manifest()
        if manifest is None:
            return False
        if manifest.owner == self._owner and self._directory.state.exists():
            self._owned = True
            return False
        self._check_owner(manifest)
        with map_disk_errors(self._directory.path):
            self._delete_local_state()
            self._write_manifest(manifest.model_copy(update={"owner": self._owner, "time": time.time()}), tag)
            for kind in RowStatus:
                self._download(manifest.lines.get(kind, []), self._directory.result_file(kind))
            self._directory.write(self._directory.path / "job.json", manifest.job)
            self._download([manifest.state], self._directory.state)
        return True

    @property
    def due(self) -> bool:
        """Return whether it is time for an upload: each minute, or less often if uploads are slow."""
        return time.monotonic() >= self._next_upload

    def upload(self, snapshot: Callable[[Path], dict[RowStatus, int]], final: bool = False) -> None:
        """Upload what is new. `snapshot` writes the state, and returns the lengths of its files of lines.

        `final`: this machine stops here, and another need not wait for the lease to expire.
        """
        began = time.monotonic()
        copy = self._directory.path / ".state.upload"
        try:
            with self._manifest_lock:
                before, _ = self._read_manifest()
                if before is not None:
                    self._check_owner(before)
            with map_disk_errors(self._directory.path):
                copy.unlink(missing_ok=True)
                lengths = snapshot(copy)
                old = before.lines if before is not None else {}
                manifest = RemoteManifest(
                    owner=self._owner,
                    time=0.0,
                    job=(self._directory.path / "job.json").read_text(encoding="utf-8"),
                    lines={
                        kind: self._upload_lines(kind, old.get(kind, []), lengths.get(kind, 0)) for kind in RowStatus
                    },
                    state=self._upload_state(copy),
                )
                with self._manifest_lock:
                    latest, tag = self._read_manifest()  # renewed since, or taken by another machine
                    if latest is not None:
                        self._check_owner(latest)
                    self._write_manifest(manifest if final else manifest.model_copy(update={"time": time.time()}), tag)
                self._delete_unused_objects(before, manifest)
        finally:
            copy.unlink(missing_ok=True)
            now = time.monotonic()
            self._next_upload = now + max(MIN_UPLOAD_INTERVAL, (now - began) * _UPLOAD_TIME_FACTOR)

    def renew_lease(self) -> None:
        """Renew the lease if this machine holds it. Raises BatchError as `upload` does."""
        with self._manifest_lock:
            if self._owned:
                manifest, tag = self._read_manifest()
                if manifest is not None:
                    self._check_owner(manifest)
                    self._write_manifest(manifest.model_copy(update={"time": time.time()}), tag)

    def release_lease(self) -> None:
        """Release the lease, however the job ended; another machine continues from the last upload."""
        with self._manifest_lock:
            if not self._owned:
                return
            self._owned = False
            manifest, tag = self._read_manifest()
            if manifest is not None and manifest.owner == self._owner and manifest.time:
                self._write_manifest(manifest.model_copy(update={"time": 0.0}), tag)

    @property
    def _owner(self) -> str:
        """Return a name for this directory on this disk; a copy on another disk has another one."""
        path = self._directory.path / "owner"
        if not path.exists():
            make_directory(self._directory.path)
            self._directory.write(path, secrets.token_hex(8))
        return path.read_text(encoding="utf-8")

    def _read_manifest(self) -> tuple[RemoteManifest | None, str | None]:
        stored = self._objects.read(_MANIFEST)
        if stored is None:
            return None, None
        try:
            return RemoteManifest.model_validate_json(stored[0]), stored[1]
        except ValidationError as error:
            raise BatchError(
                f"{self._objects.shown}/{_MANIFEST} is damaged ({error.error_count()} errors); remove "
                f"{self._objects.shown} to start again",
                "job_damaged",
            ) from None

    def _check_owner(self, manifest: RemoteManifest) -> None:
        if manifest.owner == self._owner:
            return
        if self._owned:
            raise BatchError(f"another machine has taken over the job at {self._objects.shown}", "job_elsewhere")
        silent = max(0.0, time.time() - manifest.time)
        if silent < LEASE_SECONDS:
            raise BatchError(
                f"another machine runs the job at {self._objects.shown}: it renewed its lease {silent:.0f} seconds "
                f"ago; if it is lost, the same command can take over in {math.ceil(LEASE_SECONDS - silent)} seconds",
                "job_elsewhere",
            )

    def _write_manifest(self, manifest: RemoteManifest, tag: str | None) -> None:
        failpoint("remote_state.manifest")
        if not self._objects.replace_if_unchanged(_MANIFEST, manifest.model_dump_json(indent=1).encode(), tag):
            raise BatchError(f"another machine has started to run the job at {self._objects.shown}", "job_elsewhere")
        self._owned = bool(manifest.time)
        failpoint("remote_state.manifest_written")

    def _delete_local_state(self) -> None:
        """Delete the older state on this disk; its other files are useless without it."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self._directory.state}{suffix}").unlink(missing_ok=True)
        sync(self._directory.path)  # otherwise a power failure could leave the old state with new lines
        failpoint("remote_state.forgotten")

    def _upload_lines(self, kind: RowStatus, parts: list[RemoteObject], length: int) -> list[RemoteObject]:
        path = self._directory.result_file(kind)
        if not length:
            return []
        with path.open("rb") as file:
            node = path.stat().st_ino
            if self._inodes.get(kind) != node:  # of another run, or created again since: the uploaded parts may differ
                parts = _matching_objects(file, parts)
                self._inodes[kind] = node
            place = sum(part.size for part in parts)
            if place > length:
                parts, place = [], 0
            while place < length:
                parts = [
                    *parts,
                    self._upload_object(f"{kind}-{len(parts):06d}", file, place, min(PART_BYTES, length - place)),
                ]
                place += parts[-1].size
        return parts

    def _upload_state(self, copy: Path) -> RemoteObject:
        with copy.open("rb") as file:
            return self._upload_object("state", file, 0, copy.stat().st_size)

    def _upload_object(self, name: str, file: IO[bytes], place: int, size: int) -> RemoteObject:
        """Upload these bytes as an object with a unique name."""
        file.seek(place)
        part = _HashingReader(file, size)
        name = f"{name}-{secrets.token_hex(4)}"
        failpoint("remote_state.part")
        self._objects.put(name, part)
        failpoint("remote_state.part_sent")
        if part.remaining:
            raise BatchError(f"{self._directory.path}: a file of lines is shorter than the state says", "job_damaged")
        return RemoteObject(name=name, size=size, sha256=part.sha256)

    def _delete_unused_objects(self, before: RemoteManifest | None, now: RemoteManifest) -> None:
        """Delete objects that no manifest refers to any more; once per run, also those that crashes have left."""
        kept = {_MANIFEST, *_object_names(now)}
        unused = set(_object_names(before)) if before is not None else set()
        if not self._cleaned_up:
            unused |= set(self._objects.list_names())
        for name in sorted(unused - kept):
            failpoint("remote_state.remove")
            self._objects.remove(name)
        self._cleaned_up = True

    def _download(self, parts: list[RemoteObject], path: Path) -> None:
        """Download these parts to a file atomically; without parts there is no file."""
        if not parts:
            path.unlink(missing_ok=True)
            return
        make_directory(path.parent)
        with atomic_writer(
            path,
            mode=0o600 if path == self._directory.state else 0o666,
            temporary=path.with_name(f".fetching-{path.name}"),
            before_rename=lambda: failpoint("remote_state.fetched"),
            after_rename=lambda: failpoint("remote_state.placed"),
        ) as file:
            for part in parts:
                digest = hashlib.sha256()
                for block in self._objects.read_blocks(part.name):
                    digest.update(block)
                    file.write(block)
                if digest.hexdigest() != part.sha256:
                    raise BatchError(
                        f"{self._objects.shown}/{part.name} is damaged; remove {self._objects.shown} to start again",
                        "job_damaged",
                    )


def remote_state_address(output: OutputSpec) -> str | None:
    """Return the address of the remote state: beside an output in object storage. None for a disk or a database."""
    if is_local(output.address) or is_database(output.address) or output.format == "sql":
        return None
    return sibling_address(output.address, "job")


class _HashingReader:
    """A range of a file as a file object, hashed while it is read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.remaining = file, size
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def read(self, size: int = _READ_BYTES) -> bytes:
        data = self._file.read(min(size, self.remaining))
        self.remaining -= len(data)
        self._hash.update(data)
        return data


def _matching_objects(file: IO[bytes], parts: list[RemoteObject]) -> list[RemoteObject]:
    """Return the leading parts that match the file."""
    matching: list[RemoteObject] = []
    file.seek(0)
    for part in parts:
        held = _HashingReader(file, part.size)
        while held.remaining and held.read():
            pass
        if held.remaining or held.sha256 != part.sha256:
            break
        matching.append(part)
    return matching


def _object_names(manifest: RemoteManifest) -> Iterator[str]:
    yield manifest.state.name
    yield from (part.name for parts in manifest.lines.values() for part in parts)

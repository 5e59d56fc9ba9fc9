"""A job's state beside its output on a storage, so that another machine can go on where this one was lost."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.failpoints import failpoint
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import OutputSpec
from inflight.batch.state import remote_state
from inflight.batch.state.ledger import Ledger
from inflight.batch.storage.addresses import is_database, is_local
from inflight.batch.storage.atomic_output import sibling_address
from inflight.batch.storage.object_store import ObjectStore
from inflight.batch.storage.secret_address import masked
from inflight.common.atomic_files import atomic_writer, make_directory, sync

_STORAGE_CODES = ("storage_unreachable", "storage_denied", "storage_not_found")


class StateReplicator:
    """A storage that is away for a while costs what another machine could have known, not the job."""

    def __init__(self, output: OutputSpec, directory: JobDirectory, on_message: Callable[[str], None]) -> None:
        address = remote_state_address(output)
        self._remote = None if address is None else RemoteState(address, directory)
        self._shown, self._on_message = masked(address or ""), on_message
        self._storage_down = False
        self._stopping = threading.Event()
        self._lost_lease: BatchError | None = None

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Around the job while it is open: bring here what another machine has left, and however this one ends, let
        the next one have it. Raises BatchError as Carrier does.
        """
        if self._remote is None:
            yield
            return
        renewing = threading.Thread(target=self._renew_lease, args=(self._remote,), name="batch-lease", daemon=True)
        try:
            renewing.start()  # it does nothing before the job is this machine's
            try:
                if self._remote.fetch():
                    self._on_message(f"The job's state was fetched from {self._shown}.")
                yield
            finally:
                self._stopping.set()
                renewing.join()
        finally:
            if not self._storage_down:
                with suppress(BatchError):  # then the next one waits
                    self._remote.release_lease()

    def claim(self, ledger: Ledger) -> None:
        """Say that this machine is at work, so that another one that begins learns of it. Raises BatchError."""
        if self._remote is not None:
            try:
                self._remote.upload(ledger.snapshot)
            except BatchError as error:
                self._storage_down = error.code in _STORAGE_CODES
                raise

    def upload_if_due(self, ledger: Ledger) -> None:
        """Behind a checkpoint, in its thread.

        Raises BatchError `job_elsewhere` where another machine has taken the job over.
        """
        if self._lost_lease is not None:
            raise self._lost_lease
        if self._remote is not None and self._remote.due:
            self._upload(self._remote, ledger, final=False)

    def upload(self, ledger: Ledger) -> None:
        """Before the output is made, which may take long: all rows are done, and none need be asked again."""
        if self._remote is not None:
            self._upload(self._remote, ledger, final=False)

    def upload_final(self, ledger: Ledger) -> None:
        """This machine stops here, with all that it has done."""
        if self._remote is not None:
            self._upload(self._remote, ledger, final=True)

    def _renew_lease(self, carrier: RemoteState) -> None:
        """In a thread of its own: a state that takes long to fetch or send, or an output, must not cost the lease."""
        while not self._stopping.wait(remote_state.RENEW_SECONDS):
            try:
                carrier.renew_lease()
            except BatchError as error:
                if error.code == "job_elsewhere":
                    self._lost_lease = error
                    return

    def _upload(self, carrier: RemoteState, ledger: Ledger, final: bool) -> None:
        try:
            carrier.upload(ledger.snapshot, final)
            self._storage_down = False
        except BatchError as error:
            if error.code not in _STORAGE_CODES:
                raise
            if not self._storage_down or final:
                self._on_message(f"The job's state can't be saved to {self._shown} now: {error}")
            self._storage_down = True


LEASE_SECONDS = 300.0
"""How long a machine that says nothing is thought to be at work; the clocks of both must agree to a minute or so."""
RENEW_SECONDS = LEASE_SECONDS / 3
"""How often a machine at work says so, however seldom it sends the state, and however long that takes."""
PART_BYTES = 64 << 20
_MANIFEST = "manifest.json"
MIN_UPLOAD_INTERVAL = 60.0
_UPLOAD_TIME_FACTOR = 20.0
"""Sending may take a twentieth of the time."""
_READ_BYTES = 1 << 20


class RemoteObject(BaseModel):
    """An object with so many bytes of this hash."""

    model_config = ConfigDict(frozen=True)

    name: str
    size: int
    sha256: str


class RemoteManifest(BaseModel):
    """What belongs together, and who has written it, when (seconds since 1970; 0: nobody is at work)."""

    model_config = ConfigDict(frozen=True)

    format: int = 1
    owner: str
    time: float
    job: str
    state: RemoteObject
    lines: dict[RowStatus, list[RemoteObject]]


class RemoteState:
    """Takes a job's state to an address and back. The manifest is written last: until then all is as before.

    Raises BatchError: `job_elsewhere` where another machine has the job, `job_damaged`, those of storages and disks.
    """

    def __init__(self, address: str, directory: JobDirectory) -> None:
        self._objects, self._directory = ObjectStore(address), directory
        self._owned = self._cleaned_up = False
        self._manifest_lock = threading.Lock()
        """Around each look at the manifest and what is put in its place."""
        self._inodes: dict[RowStatus, int] = {}
        self._next_upload = 0.0

    def fetch(self) -> bool:
        """Take the job over from the machine that had it, if there is one: whether its state was brought here.

        What this machine had is left as it is where it was the last to write.
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
        """Whether it is time to send again: each minute, or less often where sending takes long, or fails slowly."""
        return time.monotonic() >= self._next_upload

    def upload(self, snapshot: Callable[[Path], dict[RowStatus, int]], final: bool = False) -> None:
        """Bring there what is new. `snapshot` writes the state, and says how long the files of lines are by it.

        `last`: this machine stops here, and another need not wait for its lease to end.
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
                    latest, tag = self._read_manifest()  # renewed since, or another machine's by now
                    if latest is not None:
                        self._check_owner(latest)
                    self._write_manifest(manifest if final else manifest.model_copy(update={"time": time.time()}), tag)
                self._delete_unused_objects(before, manifest)
        finally:
            copy.unlink(missing_ok=True)
            now = time.monotonic()
            self._next_upload = now + max(MIN_UPLOAD_INTERVAL, (now - began) * _UPLOAD_TIME_FACTOR)

    def renew_lease(self) -> None:
        """Say that this machine is still at work, where it is. Raises BatchError as `send` does."""
        with self._manifest_lock:
            if self._owned:
                manifest, tag = self._read_manifest()
                if manifest is not None:
                    self._check_owner(manifest)
                    self._write_manifest(manifest.model_copy(update={"time": time.time()}), tag)

    def release_lease(self) -> None:
        """Whatever ended the job here: another machine need not wait, and goes on with what was sent last."""
        with self._manifest_lock:
            if not self._owned:
                return
            self._owned = False
            manifest, tag = self._read_manifest()
            if manifest is not None and manifest.owner == self._owner and manifest.time:
                self._write_manifest(manifest.model_copy(update={"time": 0.0}), tag)

    @property
    def _owner(self) -> str:
        """A name for this directory on this disk; a copy fetched to another disk has another."""
        path = self._directory.path / "owner"
        if not path.exists():
            make_directory(self._directory.path)
            self._directory.write(path, secrets.token_hex(8))
        return path.read_text(encoding="utf-8")

    def _read_manifest(self) -> tuple[RemoteManifest | None, str | None]:
        found = self._objects.read(_MANIFEST)
        if found is None:
            return None, None
        try:
            return RemoteManifest.model_validate_json(found[0]), found[1]
        except ValidationError as error:
            raise BatchError(
                f"{self._objects.shown}/{_MANIFEST} is damaged ({error.error_count()} faults); remove"
                f" {self._objects.shown} to begin anew",
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
                f"another machine runs the job at {self._objects.shown}: it said so {silent:.0f} seconds ago; if it"
                f" is lost, the same command goes on from there in {math.ceil(LEASE_SECONDS - silent)} seconds",
                "job_elsewhere",
            )

    def _write_manifest(self, manifest: RemoteManifest, tag: str | None) -> None:
        failpoint("remote_state.manifest")
        if not self._objects.replace_if_unchanged(_MANIFEST, manifest.model_dump_json(indent=1).encode(), tag):
            raise BatchError(f"another machine has begun to run the job at {self._objects.shown}", "job_elsewhere")
        self._owned = bool(manifest.time)
        failpoint("remote_state.manifest_written")

    def _delete_local_state(self) -> None:
        """What lies here is of an earlier time; without its state it is nothing."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self._directory.state}{suffix}").unlink(missing_ok=True)
        sync(self._directory.path)  # else a power cut could leave the old state beside new lines
        failpoint("remote_state.forgotten")

    def _upload_lines(self, kind: RowStatus, parts: list[RemoteObject], length: int) -> list[RemoteObject]:
        path = self._directory.result_file(kind)
        if not length:
            return []
        with path.open("rb") as file:
            node = path.stat().st_ino
            if self._inodes.get(kind) != node:  # of another run, or made anew since: the parts may be of another text
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
        """Bring these bytes there, as an object that nobody else makes."""
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
        """Remove what no manifest names any more; once a run also what deaths have left there."""
        kept = {_MANIFEST, *_object_names(now)}
        gone = set(_object_names(before)) if before is not None else set()
        if not self._cleaned_up:
            gone |= set(self._objects.list_names())
        for name in sorted(gone - kept):
            failpoint("remote_state.remove")
            self._objects.remove(name)
        self._cleaned_up = True

    def _download(self, parts: list[RemoteObject], path: Path) -> None:
        """Fetch these into a file, whole; none make none."""
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
                        f"{self._objects.shown}/{part.name} is damaged; remove {self._objects.shown} to begin anew",
                        "job_damaged",
                    )


def remote_state_address(output: OutputSpec) -> str | None:
    """Where the state of a job with this output is carried: beside it, on a storage. None for a disk or a database."""
    if is_local(output.address) or is_database(output.address) or output.format == "sql":
        return None
    return sibling_address(output.address, "job")


class _HashingReader:
    """So many bytes of a file as a file, hashed on their way."""

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
    """Those of the first parts that the file has."""
    same: list[RemoteObject] = []
    file.seek(0)
    for part in parts:
        held = _HashingReader(file, part.size)
        while held.remaining and held.read():
            pass
        if held.remaining or held.sha256 != part.sha256:
            break
        same.append(part)
    return same


def _object_names(manifest: RemoteManifest) -> Iterator[str]:
    yield manifest.state.name
    yield from (part.name for parts in manifest.lines.values() for part in parts)

"""The cache of engines that `inflight serve NAME` and `inflight pull` build.

Each engine has a directory of its own below the root: `entry.json` (what it was built from), `engine` (the engine
directory, which appears complete or not at all), and `lock`. A build holds the lock exclusively, a running server holds
it shared. The time of `entry.json` is when the engine was last used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from build_engines.atomic_directory import LockedError, locked
from build_engines.build import is_engine
from build_engines.checkpoints.locate import cache_directory
from build_engines.errors import BuildError
from build_engines.manifest import AnyEngine, verify_engine
from inflight.common.atomic_files import DISK_FULL_ERRORS, write_atomic
from inflight.common.suggestions import nearest

_RECORD, _ENGINE, _LOCK = "entry.json", "engine", "lock"
_REMOVED = ".removed-"
_DIGEST_LENGTH = 16

State = Literal["ready", "in use", "building", "incomplete"]


class EntryRecord(BaseModel, frozen=True):
    """What an engine was built from.

    `name` is a hub name or the path of a checkpoint. `revision` is the commit, or a hash of the checkpoint's files;
    `requested_revision` is what the user named (None for a path). `options` is a hash of everything else that
    affects the engine, `version` is that of inflight.
    """

    name: str
    revision: str
    requested_revision: str | None
    target: str
    precision: str | None
    options: str
    version: str


@dataclass(frozen=True)
class CachedEngine:
    """A directory of the cache: a complete engine, or what an interrupted build has left."""

    directory: Path
    record: EntryRecord

    @property
    def engine(self) -> Path:
        return self.directory / _ENGINE

    @cached_property
    def manifest(self) -> AnyEngine | None:
        """The engine's manifest; None if there is no complete engine."""
        try:
            return verify_engine(self.engine, hashes=False) if is_engine(self.engine) else None
        except BuildError:
            return None

    @property
    def target(self) -> str:
        return self.manifest.target if self.manifest else self.record.target

    @property
    def precision(self) -> str | None:
        return self.manifest.precision if self.manifest else self.record.precision

    @property
    def bytes(self) -> int:
        """Return the size of all its files."""
        total = 0
        for place, _, names in os.walk(self.directory):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(place, name)).st_size
        return total

    @property
    def last_used(self) -> float:
        """Return when it was last used, in seconds since 1970."""
        with suppress(OSError):
            return (self.directory / _RECORD).stat().st_mtime
        return 0.0

    @property
    def state(self) -> State:
        """Return its state now; an engine that a server runs with is in use."""
        try:
            with _locked(self.directory, fcntl.LOCK_EX, None, attempts=1):
                return "ready" if self.manifest else "incomplete"
        except LockedError:
            return "in use" if self.manifest else "building"
        except OSError:  # another user's cache, which can't be locked
            return "ready" if self.manifest else "incomplete"

    def touch(self) -> None:
        with suppress(OSError):
            os.utime(self.directory / _RECORD)


@dataclass(frozen=True)
class ModelCache:
    """The engines below `root`."""

    root: Path

    @classmethod
    def default(cls) -> ModelCache:
        """Return the user's cache."""
        return cls(cache_directory())

    def entries(self) -> list[CachedEngine]:
        """Return all engines, by name and last use."""
        try:
            directories = [path for path in self.root.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error(error) from error
        entries = [CachedEngine(path, record) for path in directories if (record := _read_record(path))]
        return sorted(entries, key=lambda entry: (entry.record.name, -entry.last_used))

    def find(self, name: str) -> list[CachedEngine]:
        """Return the engines of a model. Raises BuildError (`engine_not_found`) if there are none."""
        entries = self.entries()
        possible_names = {name, str(Path(os.path.expanduser(name)).resolve())}
        if matching := [entry for entry in entries if entry.record.name in possible_names]:
            return matching
        names = list(dict.fromkeys(entry.record.name for entry in entries))
        short = {full.rpartition("/")[2].lower(): full for full in names}
        near = nearest(name, names) or short.get(nearest(name.lower(), short) or "")
        then = f"did you mean {near}?" if near else "`inflight list` shows those it has."
        raise BuildError(f"The cache {self.root} has no engine of {name}; {then}", "engine_not_found")

    @contextmanager
    def hold(
        self, record: EntryRecord, build: Callable[[Path], None], on_message: Callable[[str], None]
    ) -> Iterator[CachedEngine]:
        """Yield the engine of `record`, which can't be removed inside the block; `build(out)` makes a missing one.

        One process builds; others wait. Raises BuildError `output_unwritable` and `disk_full`, and what `build` raises.
        """
        key = f"{record.name}\0{record.revision}\0{record.options}"
        entry = CachedEngine(self.root / _directory_name(record.name, key), record)
        with ExitStack() as held:
            try:
                engine = self._acquire(entry, build, on_message, held)
            except OSError as error:
                raise self._error(error) from error
            engine.touch()
            yield engine

    def _acquire(
        self, entry: CachedEngine, build: Callable[[Path], None], on_message: Callable[[str], None], held: ExitStack
    ) -> CachedEngine:
        """Return the complete engine, with its shared lock in `held`."""

        def waiting() -> None:
            on_message(f"Another process is building {entry.record.name}; waiting for it to finish.")

        self._sweep()
        while True:
            with ExitStack() as shared:
                shared.enter_context(_locked(entry.directory, fcntl.LOCK_SH, waiting))
                engine = replace(entry)
                if engine.manifest is not None:
                    held.push(shared.pop_all())
                    return engine
            with _locked(entry.directory, fcntl.LOCK_EX, waiting):
                if replace(entry).manifest is None:
                    write_atomic(entry.directory / _RECORD, entry.record.model_dump_json(indent=2) + "\n")
                    build(entry.engine)

    def remove(self, entry: CachedEngine) -> None:
        """Remove an engine. Raises BuildError (`engine_in_use`) if a server runs with it or a process builds it."""
        try:
            with _locked(entry.directory, fcntl.LOCK_EX, None):
                removed = self.root / f"{_REMOVED}{secrets.token_hex(8)}"
                entry.directory.rename(removed)
            shutil.rmtree(removed)
        except FileNotFoundError:
            pass  # another process was faster
        except LockedError:
            raise BuildError(
                f"{entry.record.name} is being served or built by another process; stop that first.", "engine_in_use"
            ) from None
        except OSError as error:
            raise self._error(error) from error

    def _sweep(self) -> None:
        """Delete what a killed `remove` has left."""
        for path in self.root.glob(f"{_REMOVED}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _error(self, error: OSError) -> BuildError:
        if error.errno in DISK_FULL_ERRORS:
            return BuildError(
                f"The disk of the cache {self.root} is full; free space with `inflight rm`, or name another directory"
                " with INFLIGHT_CACHE.",
                "disk_full",
            )
        return BuildError(
            f"The cache {self.root} can't be used ({error.strerror or error}); check its permissions, or name another"
            " directory with INFLIGHT_CACHE.",
            "output_unwritable",
        )


def _directory_name(name: str, key: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_LENGTH]
    shown = name.rpartition("/")[2] if os.path.isabs(name) else name
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '--', shown).lstrip('.-')[:80]}-{digest}"


def _read_record(directory: Path) -> EntryRecord | None:
    """Return the record of an entry; None for anything else in the cache."""
    try:
        return EntryRecord.model_validate_json((directory / _RECORD).read_bytes())
    except (OSError, ValidationError):
        return None


def _locked(
    directory: Path, how: int, on_wait: Callable[[], None] | None, attempts: int = 5
) -> AbstractContextManager[None]:
    """Hold the lock of an entry, as `locked` does. Several attempts go before waiting, since `inflight list` holds each
    lock for a moment to learn the entry's state."""
    return locked(directory / _LOCK, how, on_wait, attempts)

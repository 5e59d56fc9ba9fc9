"""The run directory of one server: its repository, its Triton mirror, its log; and cleanup after dead servers.

A directory belongs to the process that holds the lock on its file `lock`; the kernel releases the lock when that
process exits for any reason. So a directory whose lock is free can be removed, and one whose lock is held is in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inflight.deploy.errors import DeployError

SHARED_MEMORY_DIRECTORY = Path("/dev/shm")
# The backend starts a model's process through a shell, without quoting the paths.
_SAFE_PATH = re.compile(r"[\w./-]+")
_PREFIX = re.compile(r"inflight-[0-9a-f]{12}-")


class ServerRunDirectory:
    """A private directory under the user's runtime directory, locked while this object is open."""

    def __init__(self, path: Path, shm_prefix: str, lock: int) -> None:
        self.path = path
        self.shm_prefix = shm_prefix
        self._lock = lock

    @classmethod
    def create(cls, home: Path | None = None) -> ServerRunDirectory:
        """Create a run directory, after removing stale ones. Raises DeployError if it can't be written."""
        home = home or default_base_directory()
        if not _SAFE_PATH.fullmatch(str(home)):
            raise DeployError(
                f"{home} holds characters that Triton can't start a model's process with; name a place of letters,"
                " digits and ./_- only with INFLIGHT_RUN_DIR.",
                "server_start_failed",
            )
        token = secrets.token_hex(6)
        path = home / f"run-{token}"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(home)
            remove_stale_run_directories(home)
            lock = _locked_directory(path)
            prefix = f"inflight-{token}-"
            owner = {"pid": os.getpid(), "started": time.time(), "shm_prefix": prefix}
            (path / "owner.json").write_text(json.dumps(owner) + "\n")
        except OSError as error:
            code = "disk_full" if error.errno == 28 else "server_start_failed"
            raise DeployError(
                f"{home} can't be written ({error.strerror}); name another place with INFLIGHT_RUN_DIR.", code
            ) from error
        return cls(path, prefix, lock)

    @property
    def log(self) -> Path:
        return self.path / "triton.log"

    def close(self, *, keep_log: bool = False) -> None:
        """Remove the directory (with `keep_log` all but its log, until the next start) and release its lock."""
        remove_shared_memory(self.shm_prefix)
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
        if not keep_log:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def default_base_directory() -> Path:
    """Return their parent: $INFLIGHT_RUN_DIR, else the user's runtime directory, else the temporary one.

    If the path of the latter two has characters that Triton can't be started with, it is /tmp.
    """
    if configured := os.environ.get("INFLIGHT_RUN_DIR"):
        return Path(configured).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _SAFE_PATH.fullmatch(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime) / "inflight"
    temporary = tempfile.gettempdir()
    return Path(temporary if _SAFE_PATH.fullmatch(temporary) else "/tmp") / f"inflight-{os.getuid()}"


def stale_run_directories(home: Path | None = None) -> list[Path]:
    """Return the run directories whose owners have exited."""
    stale = []
    for path, lock in _run_directories(home):
        if lock is not None:
            os.close(lock)
            stale.append(path)
    return stale


def server_pids(home: Path | None = None) -> set[int]:
    """Return the process ids of running servers."""
    pids = set()
    for path, lock in _run_directories(home):
        if lock is not None:
            os.close(lock)
        elif owner := _owner(path):
            pids.add(int(owner["pid"]))
    return pids


def remove_stale_run_directories(home: Path | None = None) -> list[Path]:
    """Remove the run directories and shared memory of dead servers; return the directories."""
    removed = []
    for path, lock in _run_directories(home):
        if lock is not None:
            with contextlib.suppress(OSError, ValueError):
                remove_shared_memory(_owner(path).get("shm_prefix", ""))
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
            removed.append(path)
    return removed


def _run_directories(home: Path | None) -> Iterator[tuple[Path, int | None]]:
    """Yield each run directory, with its lock if its owner has exited."""
    for path in sorted((home or default_base_directory()).glob("run-*")):
        yield path, _try_lock(path)


def _owner(path: Path) -> dict[str, Any]:
    """Return what a run directory says of its owner; empty if that can't be read."""
    try:
        owner = json.loads((path / "owner.json").read_text())
        return {"pid": int(owner["pid"]), "shm_prefix": str(owner["shm_prefix"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remove_shared_memory(prefix: str) -> None:
    """Remove one server's regions. Refuses a prefix that is not inflight's: it might match those of other programs."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not a prefix of inflight")
    for region in SHARED_MEMORY_DIRECTORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def _check_private(home: Path) -> None:
    """Refuse a directory that another user owns: in /tmp, any user may have created it first."""
    if not home.parent.stat().st_mode & stat.S_IWOTH:
        return
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise DeployError(
            f"{home} is not a private directory of this user; remove it, or name another place with INFLIGHT_RUN_DIR.",
            "server_start_failed",
        )


def _locked_directory(path: Path) -> int:
    """Create a directory that is locked before other processes can see it under its name."""
    hidden = path.with_name(f".new-{path.name}")
    hidden.mkdir(mode=0o700)
    lock = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    hidden.rename(path)
    return lock


def _try_lock(path: Path) -> int | None:
    """Lock a directory whose owner has exited and return the lock; None if it is held, or another user's."""
    try:
        lock = os.open(path / "lock", os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock

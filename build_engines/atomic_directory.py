"""Writes a directory atomically: it appears complete or not at all.

`atomic_directory` yields an empty directory next to the output and exchanges the two with one rename when the block
succeeds. If the block fails (an exception, Ctrl-C, SIGTERM, a full disk), the existing output stays unchanged. The next
run removes what a SIGKILL or a power failure leaves behind.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from build_engines.errors import BuildError
from inflight.common.atomic_files import DISK_FULL_ERRORS, sync

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_ATTEMPT_SECONDS = 0.02


@contextmanager
def atomic_directory(out: Path, *, is_ours: Callable[[Path], bool], kind: str, force: bool = False) -> Iterator[Path]:
    """Yield an empty directory that becomes `out` when the block succeeds.

    `is_ours(out)` says whether an existing directory may be replaced; an empty one always may. `kind` names what is
    being written ("engine") in messages. A directory that `in_use` keeps is replaced only with `force`.
    Raises BuildError with the codes `output_exists`, `output_unwritable` and `disk_full`.
    A caller that inspects `out` before writing holds `exclusive_writer(out)` around both.
    """
    check_replaceable(out, is_ours, kind)
    partial = _beside(out, "partial")
    try:
        _check_unused(out, force)
        _remove(partial)
        with _terminate_as_interrupt():
            partial.mkdir(parents=True)
            yield partial
            _sync_tree(partial)
            check_replaceable(out, is_ours, kind)
            _check_unused(out, force)
            _put_in_place(partial, out)
    except OSError as error:
        raise _build_error(error, out, kind) from error
    finally:
        with suppress(OSError):  # the first error is reported
            _remove(partial)


@contextmanager
def exclusive_writer(out: Path, on_message: Callable[[str], None]) -> Iterator[None]:
    """Lock `out` for one writer; a second one waits and reports that."""
    lock = _beside(out, "lock")

    def waiting() -> None:
        on_message(f"Another process is writing {out}; waiting for it to finish.")

    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, fcntl.LOCK_EX, waiting))
        except OSError as error:
            raise _build_error(error, out, "output") from error
        # Unlinked while held: a waiting process sees that its lock file is no longer the one on disk.
        held.callback(lock.unlink, missing_ok=True)
        yield


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, how: int, on_wait: Callable[[], None] | None, attempts: int = 1) -> Iterator[None]:
    """Hold the lock (`fcntl.LOCK_EX` or `LOCK_SH`) of a file; without `on_wait`, raise LockedError instead of waiting.

    The file is made, and for a process that may wait the directory too, also if another process removes them meanwhile.
    """
    while True:
        if on_wait is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            if not _try_lock(descriptor, how, attempts):
                if on_wait is None:
                    raise LockedError
                on_wait()
                fcntl.flock(descriptor, how)
            if _is_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int, how: int, attempts: int) -> bool:
    for attempt in range(attempts):
        time.sleep(_ATTEMPT_SECONDS if attempt else 0)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
    return False


@contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Keep a directory from being replaced inside the block, as far as its file system has locks."""
    with ExitStack() as held:
        with suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def _check_unused(out: Path, force: bool) -> None:
    if force or not out.is_dir():
        return
    descriptor = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BuildError(
            f"A server that is running uses {out}; choose another --out and start a server from it, or say --force (the"
            " running server reads the new files when it starts again).",
            "output_exists",
        ) from None
    except OSError:  # a file system without locks
        pass
    finally:
        os.close(descriptor)


def check_replaceable(out: Path, is_ours: Callable[[Path], bool], kind: str) -> None:
    """Raise `output_exists` if `out` exists and was not written by inflight."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise BuildError(f"{out} is a file, not a directory; choose another --out.", "output_exists")
    try:
        foreign = any(out.iterdir()) and not is_ours(out)
    except OSError as error:
        raise _build_error(error, out, kind) from error
    if foreign:
        raise BuildError(
            f"{out} is not {kind} output of inflight; choose another --out or remove it.",
            "output_exists",
        )


def _build_error(error: OSError, out: Path, kind: str) -> BuildError:
    if error.errno in DISK_FULL_ERRORS:
        return BuildError(
            f"The disk of {out.parent} is full, so the {kind} was not written; free space or choose another --out.",
            "disk_full",
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return BuildError(
            f"Can't write the {kind} to {out}: {error.strerror}; a file is in the way, so choose another --out.",
            "output_exists",
        )
    return BuildError(
        f"Can't write the {kind} to {out}: {error.strerror or error}; check the path and its permissions, or choose"
        " another --out.",
        "output_unwritable",
    )


def _beside(out: Path, purpose: str) -> Path:
    # Resolved, so that the sibling is on the same file system and can be renamed.
    real = out.resolve()
    return real.parent / f".{real.name}.inflight-{purpose}"


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that cleanup runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _sync_tree(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for path in [*(os.path.join(directory, name) for name in names), directory]:
            sync(path)


def _put_in_place(partial: Path, out: Path) -> None:
    real = out.resolve()
    if real.exists():
        _exchange(partial, real)
    else:
        partial.rename(real)
    sync(real.parent)


def _exchange(new: Path, current: Path) -> None:
    """Swap two directories atomically if the file system can; otherwise in two steps, undone if the second fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        names = (os.fsencode(new), os.fsencode(current))
        if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS, errno.EXDEV):
            raise OSError(number, os.strerror(number), str(current))
    old = _beside(current, "old")
    _remove(old)
    current.rename(old)
    try:
        new.rename(current)
    except OSError:
        old.rename(current)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()

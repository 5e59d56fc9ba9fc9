"""API keys: a file that holds a hash of each key, and what the key may do.

A key is 256 random bits, so a fast hash is enough: a key can't be guessed. The file belongs to its owner alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from inflight_client import InflightError
from inflight_client.validation import shorten

from inflight.common.atomic_files import DISK_FULL_ERRORS, make_directory, write_atomic
from inflight.common.suggestions import nearest

PREFIX = "sk-inflight-"
_MAX_FILE_BYTES = 16 * 2**20
_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class ApiKey:
    """A key without the key itself. `models` empty: all. Times are seconds since 1970; None: never."""

    id: str
    name: str
    tenant: str
    sha256: str = field(repr=False)
    models: tuple[str, ...] = ()
    created: int = 0
    expires: int | None = None
    revoked: int | None = None

    @property
    def state(self) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= time.time() else "active"


class KeyFile:
    """The file, as the commands change it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[ApiKey]:
        """Return all keys. Raises InflightError for a file that is damaged, or that others may read or write."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _denied(self.path, error) from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE_BYTES:
                raise _damaged(self.path, "it is no file, or too large")
            if found.st_mode & 0o077 or found.st_uid not in (os.getuid(), 0):
                raise InflightError(
                    f"the key file {self.path} is not yours alone; run chmod 600 {self.path}", "permission_denied"
                )
            raw = file.read()
        try:
            values = json.loads(raw)
            return [_key(each) for each in values["keys"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise _damaged(self.path, "it does not have the format of `inflight key add`") from None

    def add(self, name: str, tenant: str, models: tuple[str, ...], expires: int | None) -> tuple[ApiKey, str]:
        """Create a key; return its record, and the key, which is stored nowhere. Raises InflightError."""
        token = PREFIX + secrets.token_urlsafe(32)
        with self._locked() as keys:
            if any(each.name == name and each.state == "active" for each in keys):
                raise InflightError(
                    f"there is an active key named {name!r}; choose another name, or revoke it first",
                    "invalid_parameter",
                )
            key = ApiKey(secrets.token_hex(4), name, tenant, _hash(token), models, int(time.time()), expires)
            self._write([*keys, key])
        return key, token

    def revoke(self, wanted: str) -> ApiKey:
        """Revoke the key with this id, or the active one with this name. Raises InflightError if there is none."""
        with self._locked() as keys:
            found = [each for each in keys if wanted == each.id or (wanted == each.name and each.state == "active")]
            if not found:
                known = [name for each in keys if each.state == "active" for name in (each.name, each.id)]
                near = nearest(wanted, known)
                hint = f"did you mean {near!r}?" if near else "`inflight key list` shows all."
                raise InflightError(f"there is no active key {shorten(wanted)}; {hint}", "invalid_parameter")
            revoked = replace(found[0], revoked=found[0].revoked or int(time.time()))
            self._write([revoked if each.id == revoked.id else each for each in keys])
        return revoked

    @contextmanager
    def _locked(self) -> Iterator[list[ApiKey]]:
        try:
            if not self.path.parent.is_dir():
                make_directory(self.path.parent)
            lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _denied(self.path, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(lock)

    def _write(self, keys: list[ApiKey]) -> None:
        text = json.dumps({"format": 1, "keys": [asdict(each) for each in keys]}, indent=1)
        try:
            write_atomic(self.path, text, mode=0o600)
        except OSError as error:
            raise _denied(self.path, error) from None


class KeyRing:
    """The keys of a running gateway, read again when the file changes.

    It never opens up: once a file was there, one that is damaged or gone denies every key.
    """

    def __init__(self, path: Path) -> None:
        self._file = KeyFile(path)
        self._mark: tuple[int, ...] | None = None
        self._checked = 0.0
        self._keys: list[tuple[bytes, ApiKey]] = []
        self.required = False
        """Whether requests need a key."""
        self.problem = ""
        """Why all keys are denied, in one sentence."""
        self._refresh()

    def authenticate(self, token: str) -> ApiKey | None:
        """Return the key's record; None for an unknown, revoked or expired one. The time tells nothing of the keys."""
        self.refresh()
        digest = _hash(token).encode()
        found = None
        for known, key in self._keys:
            if hmac.compare_digest(known, digest):
                found = key
        return found if found is not None and found.state == "active" else None

    def refresh(self) -> None:
        """Look whether the file has changed, at most twice a second."""
        if time.monotonic() - self._checked >= _CHECK_SECONDS:
            self._refresh()

    def _refresh(self) -> None:
        self._checked = time.monotonic()
        try:
            found = os.stat(self._file.path)
            mark: tuple[int, ...] = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid)
        except OSError as error:
            mark = (error.errno or 0,)
        if mark == self._mark:
            return
        self._mark = mark
        was_there = self.required
        try:
            keys = self._file.read()
            self.required = was_there or self._file.path.exists()
            self.problem = f"the key file {self._file.path} is gone" if was_there and not keys else ""
        except InflightError as error:
            keys, self.required, self.problem = [], True, str(error)
        self._keys = [(each.sha256.encode(), each) for each in keys]


def default_key_file() -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(configured) if configured.startswith("/") else Path.home() / ".config") / "inflight" / "keys.json"


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _key(value: Mapping[str, Any]) -> ApiKey:
    key = ApiKey(**{**value, "models": tuple(value["models"])})
    texts = (key.id, key.name, key.tenant, key.sha256, *key.models)
    times = (key.created, key.expires or 0, key.revoked or 0)
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in times):
        raise ValueError
    return key


def _damaged(path: Path, why: str) -> InflightError:
    return InflightError(
        f"the key file {path} can't be read: {why}; restore it, or remove it and create new keys", "invalid_parameter"
    )


def _denied(path: Path, error: OSError) -> InflightError:
    code = "disk_full" if error.errno in DISK_FULL_ERRORS else "output_unwritable"
    return InflightError(f"the key file {path} can't be used: {error.strerror}; choose another --key-file", code)

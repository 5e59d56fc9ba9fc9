"""The API keys that a running gateway accepts."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from pathlib import Path
from typing import NamedTuple

from inflight_client import InflightError

from inflight.gateway.key_file import ApiKey, FileStamp, KeyFile, key_digest, read_key_file
from inflight.openai_api.errors import ApiError

__all__ = ["ApiKey", "Caller", "KeyRing"]

CHECK_SECONDS = 0.5
"""Seconds between looks at the file, so that a revoked key is refused within a second."""

_SETTLED_NS = 2_000_000_000
"""Changes within a tick of the file system's clock have the same times, so a file that just changed is read again."""

_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Who sends a request: the tenant of its API key, and the models that the key may use (all if empty)."""

    tenant: str = ""
    models: frozenset[str] = frozenset()
    key: ApiKey | None = None

    @property
    def visible(self) -> frozenset[str] | None:
        """The models that the caller may know of; None: all."""
        return self.models or None

    @property
    def trusted(self) -> bool:
        return self.key is None or self.key.trusted

    @property
    def weight(self) -> int:
        """The tenant's share of the places, relative to that of others."""
        return 1 if self.key is None else self.key.weight

    @property
    def degrades(self) -> bool:
        """Whether requests may get less than they ask for, rather than wait."""
        return self.key is None or self.key.degrade

    def check_priority(self, priority: int, field: str) -> None:
        """Raise ApiError 403, which names the field, for a priority beyond the key's."""
        most = 0 if self.key is None else self.key.max_priority
        if priority > most and not self.trusted:
            raise ApiError(
                f"this API key may send requests of priority {most} at most, and {field} asks for {priority}; leave it"
                " out, or use a key that was made with `inflight key add --max-priority`",
                "permission_denied",
                field,
                status=403,
            )

    def check_trusted(self, what: str) -> None:
        """Raise ApiError 403 for a key without the operator's trust."""
        if not self.trusted:
            raise ApiError(
                f"this API key may not {what}; use one that was made with `inflight key add --trusted`",
                "permission_denied",
                status=403,
            )

    def check_model(self, model: str) -> None:
        if self.models and model not in self.models:
            raise ApiError(
                f"this API key may not use the model {model[:100]!r}", "permission_denied", "model", status=403
            )


class KeyRing:
    """The keys of a file, which is read again once it changes. A file that becomes unusable denies every key.

    Can be shared by threads.
    """

    def __init__(self, path: Path, file: KeyFile | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._keys: tuple[tuple[bytes, ApiKey], ...] = ()
        self._stamp: FileStamp | None = None
        self.policy: str | None = None
        """The SHA-256 of the file without the keys' digests; None while there is no usable one."""
        self._problem = ""
        self._existed = False
        if file is not None:
            self._take(file)
        self._next_check = time.monotonic() + CHECK_SECONDS

    @classmethod
    def load(cls, path: Path) -> KeyRing:
        """Read the keys of a file; a missing one has no keys.

        Raises InflightError, `storage_denied` or `keys_invalid`, if the file is unusable.
        """
        return cls(path, read_key_file(path))

    @property
    def required(self) -> bool:
        """Whether requests need a key: the file exists, or has existed since `load`."""
        with self._lock:
            self._refresh()
            return self._existed

    def authenticate(self, token: str) -> ApiKey | None:
        """Return the key with this text unless it is unknown, revoked or expired.

        The time depends on the number of keys alone: every digest is compared, each in constant time.
        """
        with self._lock:
            self._refresh()
            keys = self._keys
        presented = key_digest(token)
        presented_key = None
        for digest, key in keys:
            if hmac.compare_digest(digest, presented):
                presented_key = key
        return None if presented_key is None or presented_key.is_expired() else presented_key

    def _refresh(self) -> None:
        if time.monotonic() < self._next_check:
            return
        try:
            if self._changed():
                file = read_key_file(self._path)
                if file is not None:
                    self._take(file)
                elif self._existed:
                    self._deny(f"the key file {self._path} was deleted; restore it from a backup")
        except InflightError as error:
            self._existed = True
            self._deny(str(error))
        self._next_check = time.monotonic() + CHECK_SECONDS

    def _changed(self) -> bool:
        if self._stamp is None or abs(time.time_ns() - self._stamp.changed_ns) < _SETTLED_NS:
            return True
        try:
            return FileStamp.of(self._path.stat()) != self._stamp
        except OSError:
            return True

    def _take(self, file: KeyFile) -> None:
        if self._problem:
            _log.info("The key file %s is usable again.", self._path)
        self._keys = tuple((bytes.fromhex(entry.sha256), entry.key) for entry in file.entries if entry.revoked is None)
        self._stamp, self._problem, self._existed = file.stamp, "", True
        self.policy = file.policy

    def _deny(self, problem: str) -> None:
        if problem != self._problem:
            _log.error("Every API key is refused: %s", problem)
        self._keys, self._stamp, self._problem, self.policy = (), None, problem, None

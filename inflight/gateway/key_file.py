"""The file of API keys: what it holds. It has the SHA-256 of each key, never the key."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple

from inflight_client import InflightError
from inflight_client.validation import invalid_value

PREFIX = "sk-inflight-"
"""The start of every key, by which scanners for leaked secrets recognize it."""

MAX_FILE_BYTES = 4 << 20
"""More than 10,000 keys."""

KeyState = Literal["valid", "expired", "revoked"]

VERSION = 1
_FIELDS = ("id", "sha256", "name", "tenant", "models", "created", "expires", "revoked")
_ID = re.compile(r"key-[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_CHARACTERS = 128
_LABEL = f"1 to {_MAX_CHARACTERS} printable characters, without spaces at its ends"


@dataclass(frozen=True)
class Quotas:
    """How much a key may use; None: as much as the server can do."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_concurrent: int | None = None

    @property
    def counts_tokens(self) -> bool:
        return self.tokens_per_minute is not None or self.tokens_per_day is not None

    def as_dict(self) -> dict[str, int]:
        """Return the quotas that are set."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}


class KeyOption(NamedTuple):
    """A field of a key that may be left out, and its bounds if it is a number."""

    default: Any
    least: int = 0
    most: int = 0

    def permits(self, value: Any) -> bool:
        return type(value) is type(self.default) and (type(value) is bool or self.least <= value <= self.most)


OPTIONS = {
    "trusted": KeyOption(False),
    "weight": KeyOption(1, 1, 1000),
    "max_priority": KeyOption(0, 0, 1000),
    "degrade": KeyOption(True),
    "cache": KeyOption(False),
}
_NO_QUOTAS = Quotas()
_QUOTAS = {each.name for each in fields(Quotas)}


@dataclass(frozen=True)
class ApiKey:
    """What a key permits. `models` empty: every model. Times are in UTC; `expires` None: never."""

    id: str
    name: str
    tenant: str
    models: tuple[str, ...]
    created: datetime
    expires: datetime | None = None
    quotas: Quotas = _NO_QUOTAS
    trusted: bool = False
    """Whether it may read every tenant's metrics, and send requests of any priority."""
    weight: int = 1
    """Of its tenant's share of the places, where requests wait."""
    max_priority: int = 0
    degrade: bool = True
    """Whether its requests may get less than they ask for, where a route says so."""
    cache: bool = False
    """Whether the response cache answers its requests."""

    @classmethod
    def new(
        cls,
        name: str,
        *,
        tenant: str | None = None,
        models: Iterable[str] = (),
        expires: datetime | None = None,
        quotas: Quotas = _NO_QUOTAS,
        trusted: bool = False,
        weight: int = 1,
        max_priority: int = 0,
        degrade: bool = True,
        cache: bool = False,
    ) -> ApiKey:
        """Return a key with a new id. Raises InflightError (`invalid_parameter`); `tenant` is the name by default."""
        name = unicodedata.normalize("NFC", name)
        _check_label("the name", name)
        if _ID.fullmatch(name):
            raise invalid_value("the name", name, "different from an id")
        if tenant is None and not name.isascii():
            raise invalid_value("the tenant, by default the name,", name, "ASCII; pass --tenant")
        tenant = name if tenant is None else tenant
        _check_label("the tenant", tenant)
        if not tenant.isascii():
            raise invalid_value("the tenant", tenant, "ASCII")
        models = tuple(dict.fromkeys(models))
        for model in models:
            _check_label("a model", model)
        created = datetime.now(timezone.utc).replace(microsecond=0)
        if expires is not None and expires <= created:
            raise invalid_value("the expiry", format_time(expires), "in the future")
        key_id = f"key-{secrets.token_hex(6)}"
        options = (trusted, weight, max_priority, degrade, cache)
        return cls(*(key_id, name, tenant, models, created, expires, quotas, *options))

    @property
    def options(self) -> dict[str, Any]:
        """What differs from its default, as the file has it."""
        return {name: getattr(self, name) for name, option in OPTIONS.items() if getattr(self, name) != option.default}

    def is_expired(self) -> bool:
        """Return whether the key's time is over."""
        return self.expires is not None and self.expires <= datetime.now(timezone.utc)


@dataclass(frozen=True)
class KeyEntry:
    """A key of the file, with the SHA-256 of its text in hexadecimal."""

    key: ApiKey
    sha256: str = field(repr=False)
    revoked: datetime | None = None

    @property
    def state(self) -> KeyState:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.key.is_expired() else "valid"


@dataclass(frozen=True)
class FileStamp:
    """What changes whenever a file is replaced or written, or its permissions change."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class KeyFile:
    """The content of a file of keys; `stamp` changes with the file, and `policy` with all but the keys' digests.

    `policy` is the SHA-256 of the file's JSON without these, with sorted names and without blanks.
    """

    entries: tuple[KeyEntry, ...]
    stamp: FileStamp
    policy: str


def default_key_file() -> Path:
    """Return `$XDG_CONFIG_HOME/inflight/keys.json`, as in the XDG Base Directory Specification.

    Raises InflightError (`invalid_parameter`) if neither it nor a home directory is known.
    """
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():  # the specification says to ignore a relative path
        try:
            folder = Path.home() / ".config"
        except RuntimeError:
            raise InflightError(
                "there is no home directory for the keys; pass --key-file", "invalid_parameter"
            ) from None
    return folder / "inflight" / "keys.json"


def key_digest(token: str) -> bytes:
    """Return the SHA-256 of a key. A key has 256 random bits, so it needs no slow hash."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def read_key_file(path: Path) -> KeyFile | None:
    """Return the keys of a file, None if there is no file.

    Raises InflightError: `storage_denied` if it can't be read, or if other users can read or write it;
    `keys_invalid` if its content is invalid. No message quotes the content.
    """
    try:
        # Non-blocking: if this is a pipe, it may have no writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.is_symlink():
            raise _invalid(path, "is a symbolic link to a missing file") from None
        return None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, error) from None
    try:
        status = os.fstat(descriptor)
        _check_access(path, status)
        if status.st_size > MAX_FILE_BYTES:
            raise _invalid(path, f"has {status.st_size} bytes, more than {MAX_FILE_BYTES}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(descriptor)
    entries, policy = _parse(path, content)
    return KeyFile(entries, FileStamp.of(status), policy)


def parse_time(text: str) -> datetime:
    """Return an ISO 8601 time in UTC; without an offset it is in UTC. Raises ValueError."""
    time = datetime.fromisoformat(text)
    try:
        return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("the time is out of range") from None


def format_time(time: datetime) -> str:
    """Return a time in UTC as ISO 8601, to the second."""
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def _is_quota(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_label(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 1 <= len(value) <= _MAX_CHARACTERS
        and value.isprintable()
        and value == value.strip()
        and PREFIX not in value
    )


def _check_label(what: str, value: str) -> None:
    if PREFIX in value:  # not to be repeated in a message
        raise InflightError(f"{what} contains a key; revoke that key, and choose another text", "invalid_parameter")
    if not _is_label(value):
        raise invalid_value(what, value, _LABEL)


def _invalid(path: Path, what: str) -> InflightError:
    return InflightError(f"the key file {path} {what}; correct it, or restore it from a backup", "keys_invalid")


def _unreadable(path: Path, error: Exception) -> InflightError:
    why = getattr(error, "strerror", None) or error
    return InflightError(
        f"the key file {path} can't be read: {why}; check the path and its permissions", "storage_denied"
    )


def _check_access(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _invalid(path, "is not a regular file")
    if status.st_uid not in (0, os.geteuid()):
        raise InflightError(
            f"the key file {path} belongs to another user; run `chown {os.geteuid()} {path}`", "storage_denied"
        )
    # A Secret of Kubernetes belongs to root, and to a group of the pod that may read it.
    ours = status.st_uid == 0 != os.geteuid() and status.st_gid in (os.getegid(), *os.getgroups())
    if status.st_mode & (0o037 if ours else 0o077):
        raise InflightError(
            f"other users have access to the key file {path} (mode {stat.S_IMODE(status.st_mode):04o}); run "
            f"`chmod 600 {path}`",
            "storage_denied",
        )


def _parse(path: Path, content: bytes) -> tuple[tuple[KeyEntry, ...], str]:
    """Return the keys, and the policy's SHA-256."""
    try:
        parsed = json.loads(content, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        parsed = None
    # Raised here, since the exception of json holds the whole text.
    if not isinstance(parsed, dict) or set(parsed) != {"version", "keys"} or not isinstance(parsed["keys"], list):
        raise _invalid(path, 'is not JSON of the form {"version": 1, "keys": [...]}')
    if type(parsed["version"]) is not int or parsed["version"] != VERSION:
        raise _invalid(path, f"has another version than {VERSION}, which this version of inflight reads")
    entries = tuple(_entry(path, position, value) for position, value in enumerate(parsed["keys"]))
    for what, values in (("id", [entry.key.id for entry in entries]), ("sha256", [entry.sha256 for entry in entries])):
        if len(set(values)) < len(values):
            raise _invalid(path, f"has two keys with the same {what}")
    for value in parsed["keys"]:
        del value["sha256"]
    policy = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return entries, hashlib.sha256(policy.encode()).hexdigest()


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a repeated field could hide that a key is revoked."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a field is repeated")
    return values


def _entry(path: Path, position: int, value: Any) -> KeyEntry:
    if not isinstance(value, dict) or {*value} - {"quotas", *OPTIONS} != {*_FIELDS}:
        raise _invalid(
            path, f"is invalid: keys[{position}] must be an object with exactly the fields {', '.join(_FIELDS)}"
        )
    times: dict[str, datetime | None] = {}
    wrong = [name for name in ("id", "name", "tenant") if not _is_label(value[name])]
    if "tenant" not in wrong and not value["tenant"].isascii():
        wrong.append("tenant")
    if not (isinstance(value["sha256"], str) and _SHA256.fullmatch(value["sha256"])):
        wrong.append("sha256")
    if not (isinstance(value["models"], list) and all(map(_is_label, value["models"]))):
        wrong.append("models")
    quotas = value.get("quotas", {})
    if not isinstance(quotas, dict) or not {*quotas} <= _QUOTAS or not all(map(_is_quota, quotas.values())):
        wrong.append("quotas")
    options = {name: value[name] for name in OPTIONS if name in value}
    wrong += [name for name, option in options.items() if not OPTIONS[name].permits(option)]
    for name in ("created", "expires", "revoked"):
        try:
            times[name] = None if value[name] is None else parse_time(value[name])
        except (ValueError, TypeError):
            wrong.append(name)
    created = times.get("created")
    if wrong or created is None:
        raise _invalid(path, f"is invalid at keys[{position}]: {', '.join(wrong or ['created'])}")
    models = tuple(value["models"])
    names = (value["id"], value["name"], value["tenant"])
    key = ApiKey(*names, models, created, times["expires"], Quotas(**quotas), **options)
    return KeyEntry(key, value["sha256"], times["revoked"])

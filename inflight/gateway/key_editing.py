"""Changes to the file of API keys, one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from inflight_client import InflightError

from inflight.common.atomic_files import DISK_FULL_ERRORS, write_atomic
from inflight.common.suggestions import nearest
from inflight.gateway.key_file import (
    MAX_FILE_BYTES,
    PREFIX,
    VERSION,
    ApiKey,
    KeyEntry,
    Quotas,
    format_time,
    key_digest,
    read_key_file,
)


def add_key(path: Path, key: ApiKey) -> str:
    """Add the key to the file, which is created if it is missing, and return its text, which is stored nowhere.

    Raises InflightError: `invalid_parameter` if a valid key has the name, `output_unwritable`, `disk_full`, and those
    of `read_key_file`.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    with _locked(path) as file:
        entries = _entries(file)
        for entry in entries:
            if entry.state == "valid" and entry.key.name == key.name:
                raise InflightError(
                    f"the name {key.name!r} is in use by the valid key {entry.key.id}; choose another name, or run "
                    f"`inflight key revoke {entry.key.id}` first",
                    "invalid_parameter",
                )
        _write(file, [*entries, KeyEntry(key, key_digest(token).hex())])
    return token


def revoke_key(path: Path, label: str) -> tuple[ApiKey, ...]:
    """Revoke the key with this id, or those of this name, and return them; revoked ones are revoked already.

    Raises InflightError: `invalid_parameter` if no key has it, and those of `add_key`.
    """
    with _changed(path, label) as (file, entries, matching):
        open_ones = [entry for entry in matching if entry.revoked is None]
        if open_ones:
            now = datetime.now(timezone.utc)
            _write(file, [replace(entry, revoked=now) if entry in open_ones else entry for entry in entries])
    return tuple(entry.key for entry in open_ones or matching)


def limit_key(path: Path, label: str, quotas: Quotas | None) -> ApiKey:
    """Replace the quotas of the valid key with this id or name unless None, and return it. Raises as `revoke_key`."""
    with _changed(path, label) as (file, entries, matching):
        valid = [entry for entry in matching if entry.state == "valid"]
        if not valid:
            raise InflightError(f"the key {label!r} is {matching[0].state}; add a new one", "invalid_parameter")
        if quotas is None:
            return valid[0].key
        changed = replace(valid[0], key=replace(valid[0].key, quotas=quotas))
        _write(file, [changed if entry is valid[0] else entry for entry in entries])
    return changed.key


def _entries(path: Path) -> tuple[KeyEntry, ...]:
    file = read_key_file(path)
    return file.entries if file else ()


def _write(path: Path, entries: Sequence[KeyEntry]) -> None:
    records = [
        {
            "id": entry.key.id,
            "sha256": entry.sha256,
            "name": entry.key.name,
            "tenant": entry.key.tenant,
            "models": entry.key.models,
            "created": format_time(entry.key.created),
            "expires": entry.key.expires and format_time(entry.key.expires),
            "revoked": entry.revoked and format_time(entry.revoked),
            **({"quotas": quotas} if (quotas := entry.key.quotas.as_dict()) else {}),
            **entry.key.options,
        }
        for entry in entries
    ]
    content = json.dumps({"version": VERSION, "keys": records}, indent=2, ensure_ascii=False) + "\n"
    if len(content.encode()) > MAX_FILE_BYTES:
        raise InflightError(
            f"the key file {path} would have more than {MAX_FILE_BYTES} bytes; remove revoked keys from it",
            "output_unwritable",
        )
    write_atomic(path, content, mode=0o600)


@contextmanager
def _changed(path: Path, label: str) -> Iterator[tuple[Path, tuple[KeyEntry, ...], list[KeyEntry]]]:
    """Yield the locked file, its entries, and those with this id or name. Raises InflightError if there is none."""
    label = unicodedata.normalize("NFC", label)
    if PREFIX in label:
        raise InflightError(
            "that is a key; pass its id or its name, which `inflight key list` shows", "invalid_parameter"
        )
    if not os.path.exists(path):  # do not create its directory
        raise InflightError(f"there is no key file at {path}; pass --key-file", "invalid_parameter")
    with _locked(path) as file:
        entries = _entries(file)
        matching = [entry for entry in entries if entry.key.id == label] or [
            entry for entry in entries if unicodedata.normalize("NFC", entry.key.name) == label
        ]
        if not matching:
            near = nearest(label, [text for entry in entries for text in (entry.key.name, entry.key.id)])
            meant = f"did you mean {near!r}?" if near else "`inflight key list` shows them"
            raise InflightError(f"no key has the id or name {label!r}; {meant}", "invalid_parameter")
        yield file, entries, matching


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Yield the path of the file without symbolic links, while no other process changes it."""
    try:
        target = Path(os.path.realpath(path))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(target.with_name(f".{target.name}.lock"), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield target
        finally:
            os.close(lock)
    except OSError as error:
        full = error.errno in DISK_FULL_ERRORS
        raise InflightError(
            f"the key file {path} can't be written: {error.strerror or error}; "
            + ("free space" if full else "check the permissions of its directory, or pass another --key-file"),
            "disk_full" if full else "output_unwritable",
        ) from None

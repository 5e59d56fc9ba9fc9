"""Addresses of inputs and outputs: local paths, addresses of fsspec, and database URLs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(file:)?([^?]+)(\?.*)?", re.DOTALL)
_VARIABLE = "${"
# An address that begins with an environment variable is a whole database URL, with its password.
_DATABASE = re.compile(r"(sqlite|postgres|postgresql|mysql|mariadb|mssql|oracle)(\+\w+)?://|\$\{")
_QUEUE_TABLE = re.compile(r"[?&]queue=([^&]*)")
_QUEUE = re.compile(r"(sqs|nats|tls)://|https?://([\w-]+\.)?sqs[.-]|https?://[^/]+/\d{12}/[\w-]+(\.fifo)?(\?|$)")
"""JetStream, and SQS by a queue's name or by its URL."""


def is_local(address: str) -> bool:
    """Return whether an address is a path on this machine's disks."""
    return "://" not in address or address.startswith("file://")


def local_path(address: str) -> Path:
    return Path(address.removeprefix("file://"))


def is_database(address: str) -> bool:
    """Return whether an address is a database URL."""
    return _DATABASE.match(address) is not None


def is_queue(address: str) -> bool:
    """Return whether an address is that of a message queue."""
    return _QUEUE.match(address) is not None or (is_database(address) and _QUEUE_TABLE.search(address) is not None)


def split_queue(address: str) -> tuple[str, str]:
    """Return the address of a queue's database, and the name of its table."""
    more_follows = re.sub(r"\?queue=[^&]*&", "?", address)
    return _QUEUE_TABLE.sub("", more_follows), unquote(_QUEUE_TABLE.findall(address)[0])


def is_on_local_disk(address: str) -> bool:
    """Return whether the address is a file on this machine: a path, or an SQLite database."""
    return is_local(address) or address.startswith("sqlite")


def absolute_address(address: str) -> str:
    """Return the address with an absolute path, for paths and SQLite URLs.

    An address that begins with an environment variable is unchanged.
    """
    if address.startswith(_VARIABLE):
        return address
    if is_local(address):
        return absolute_path(str(local_path(address)))
    parts = _SQLITE.fullmatch(address)
    if parts is None or parts[3].startswith((":memory:", _VARIABLE)):
        return address
    # SQLAlchemy uses a path as it is, and SQLite its own `file:` as a URI.
    path = quote(absolute_path(unquote(parts[3]))) if parts[2] else absolute_path(parts[3])
    return f"{parts[1]}{parts[2] or ''}{path}{parts[4] or ''}"


def absolute_path(path: str) -> str:
    """Return the absolute path. A symbolic link as its last component is kept, since its target may change."""
    folder, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)

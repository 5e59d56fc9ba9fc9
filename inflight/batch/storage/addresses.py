"""Where inputs and outputs lie: paths on this machine, addresses of fsspec's, and URLs of databases."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(file:)?([^?]+)(\?.*)?", re.DOTALL)
_VARIABLE = "${"
# An address that begins with a variable of the environment is a database's whole one, with its password.
_DATABASE = re.compile(r"(sqlite|postgres|postgresql|mysql|mariadb|mssql|oracle)(\+\w+)?://|\$\{")


def is_local(address: str) -> bool:
    """Whether an address is a path on this machine's disks."""
    return "://" not in address or address.startswith("file://")


def local_path(address: str) -> Path:
    return Path(address.removeprefix("file://"))


def is_database(address: str) -> bool:
    """Whether an address is that of a database, which tables are in."""
    return _DATABASE.match(address) is not None


def is_on_local_disk(address: str) -> bool:
    """Whether what lies there is a file of this machine's: a path, or a database of SQLite's."""
    return is_local(address) or address.startswith("sqlite")


def absolute_address(address: str) -> str:
    """The same place from any directory: paths, and those of SQLite's URLs, begin at the root.

    What begins with a variable of the environment says itself where it is.
    """
    if address.startswith(_VARIABLE):
        return address
    if is_local(address):
        return absolute_path(str(local_path(address)))
    found = _SQLITE.fullmatch(address)
    if found is None or found[3].startswith((":memory:", _VARIABLE)):
        return address
    # SQLAlchemy takes a path as it stands, and SQLite its own `file:` as a URI.
    path = quote(absolute_path(unquote(found[3]))) if found[2] else absolute_path(found[3])
    return f"{found[1]}{found[2] or ''}{path}{found[4] or ''}"


def absolute_path(path: str) -> str:
    """From the root on. A link in its last place stays one: it may come to lead elsewhere."""
    folder, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)

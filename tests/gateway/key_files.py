"""Files of keys, as people and damaged disks leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENTRY: dict[str, Any] = {
    "id": "key-0123456789ab",
    "sha256": "ab" * 32,
    "name": "shop",
    "tenant": "shop",
    "models": [],
    "created": "2026-01-01T00:00:00Z",
    "expires": None,
    "revoked": None,
}


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    """Write a file in place, as an editor does."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def keys_json(*changes: dict[str, Any], version: Any = 1) -> str:
    """The text of a file with one key for each of these changes of `ENTRY`."""
    return json.dumps({"version": version, "keys": [ENTRY | change for change in changes]})

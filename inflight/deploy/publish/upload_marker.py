"""The object that stands on S3 while a repository is being written: who writes, and what is theirs to replace.

A writer that was killed leaves it behind; the next one reads there which objects a half repository consists of.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field

MARKER_FILE = "inflight.unfinished"


@dataclass(frozen=True)
class UploadMarker:
    """`names` are those of all objects that were of the repository before, or will be; `owner` is one writer's own."""

    names: frozenset[str]
    owner: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def parse(cls, content: bytes) -> UploadMarker:
        """Read one; what can't be read names nothing."""
        try:
            found = json.loads(content)
            return cls(frozenset(map(str, found["names"])), str(found["owner"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls(frozenset(), "")

    def content(self) -> bytes:
        return json.dumps({"owner": self.owner, "names": sorted(self.names)}).encode()

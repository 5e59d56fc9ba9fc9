"""A small text file that is there wholly, as it was or as it is to be, whatever cuts the writing off."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def replace_file(path: Path, text: str, mode: int | None = None) -> None:
    """Put the text where the path leads. `mode` is the file's own, and without one stays that of the old file.

    A new file's is 0600. Raises OSError, and then the old file stands as it did; ValueError for text without UTF-8.
    """
    place = path.resolve()  # a link stays a link
    if mode is None:
        mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o600
    descriptor, beside = tempfile.mkstemp(dir=place.parent, prefix=".inflight-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(place)
    except BaseException:
        Path(beside).unlink()
        raise

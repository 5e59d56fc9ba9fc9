"""What all parts of a job agree on, whichever process on whichever machine is the first to say it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from inflight.batch.errors import writing
from inflight.batch.failpoints import reach
from inflight.batch.state.line_file import sync_directory


def agree(place: Path, value: str) -> str:
    """What the file at `place` holds; this value, if there was no such file yet.

    Raises BatchError `disk_full`, `job_failed`.
    """
    with writing(place.parent):
        if not place.exists():
            mine = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
            with mine.open("w", encoding="utf-8") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            reach("agree")
            with suppress(FileExistsError):
                place.hardlink_to(mine)  # which never takes another's place, on disks of the network too
            reach("agreed")
            mine.unlink()
        sync_directory(place.parent)  # also where it is there: the process that made it may have died before this
        return place.read_text(encoding="utf-8")

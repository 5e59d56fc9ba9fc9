"""Parses and formats sizes of memory."""

from __future__ import annotations

import re

from build_engines.errors import invalid

GIB = 1 << 30
MIB = 1 << 20

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(ib|b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of "24GiB", "24GB", "80g" or "1.5 TiB"; a single letter means powers of 1024, as in "GiB".

    Raises BuildError (`invalid_parameter`) if `text` is not a size above zero with a unit.
    """
    match = _SIZE.fullmatch(text.strip())
    number, letter, tail = match.groups() if match else ("0", "", None)
    if float(number) <= 0 or not letter:
        raise invalid(f"{text!r} is not a size of memory; write it as 24GiB, 24GB or 80g.")
    base = 1000 if (tail or "").lower() == "b" else 1024
    return int(float(number) * base ** _POWERS[letter.lower()])


def format_size(size: float) -> str:
    """Return a size for people, in GiB, MiB or KiB."""
    if abs(size) >= GIB:
        return f"{size / GIB:,.1f} GiB" if abs(size) < 1000 * GIB else f"{size / GIB:,.0f} GiB"
    if abs(size) >= MIB:
        return f"{size / MIB:,.0f} MiB"
    return f"{size / 1024:,.1f} KiB"

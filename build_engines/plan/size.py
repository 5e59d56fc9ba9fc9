"""Sizes of memory as people write them, and as they read them."""

from __future__ import annotations

import re

from build_engines.errors import BuildError

GIB = 1 << 30
MIB = 1 << 20

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(ib|b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of "24GiB", "24GB", "80g" or "1.5 TiB"; a bare letter counts in powers of 1024, as "GiB" does.

    Raises BuildError (`invalid_parameter`) for what is no size above zero; a bare number needs its unit, since bytes
    are never meant.
    """
    match = _SIZE.fullmatch(text.strip())
    number, letter, tail = match.groups() if match else ("0", "", None)
    if float(number) <= 0 or not letter:
        raise BuildError(f"{text!r} is no size of memory; write it as 24GiB, 24GB or 80g.", "invalid_parameter")
    base = 1000 if (tail or "").lower() == "b" else 1024
    return int(float(number) * base ** _POWERS[letter.lower()])


def format_size(size: float) -> str:
    """A size as people read it: GiB, below one of them MiB, below one of those KiB."""
    if abs(size) >= GIB:
        return f"{size / GIB:,.1f} GiB" if abs(size) < 1000 * GIB else f"{size / GIB:,.0f} GiB"
    if abs(size) >= MIB:
        return f"{size / MIB:,.0f} MiB"
    return f"{size / 1024:,.1f} KiB"

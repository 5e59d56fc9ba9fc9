"""Suggests the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like `name`, None if none is like it."""
    from difflib import get_close_matches  # imported late: few need it, and help must be quick

    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), None)

"""Suggests the name that a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of `names` that is most similar to `name`, None if there is none."""
    from difflib import get_close_matches  # few callers need it, and help must be quick

    return next(iter(get_close_matches(name, names, n=1, cutoff=cutoff)), None)

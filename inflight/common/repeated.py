"""Finds what is listed twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def first_repeated(names: Iterable[Name]) -> Name | None:
    """Return the first name that was there before, None if all differ; in linear time."""
    seen: set[Name] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None

"""A table of a page: what its columns are called, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """`tone`: "bad" and "good" are shown in red and green; each has a word for it in its text too."""

    text: str
    tone: str = ""


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class Table:
    """The first `words` columns are words, and left; the others are figures, and right."""

    head: Sequence[str]
    rows: Sequence[Row]
    words: int = 1

    @property
    def cells(self) -> list[list[Cell]]:
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]

"""A table of a page: what its columns are called, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Cell:
    """`tone`: "bad" and "good" are shown in red and green; each has a word for it in its text too. `link`: a file to
    open from here, relative to the page."""

    text: str
    tone: str = ""
    link: str = ""

    @property
    def address(self) -> str:
        """The link as a browser takes it: as a path and never as anything else."""
        return quote(self.link, errors="replace")


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

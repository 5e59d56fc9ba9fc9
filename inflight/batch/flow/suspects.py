"""Rows that were in flight when an engine died: which of them did it is found out away from all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inflight_client import InflightError

from inflight.batch.row import Row

LOSSES_A_DEATH = 4
"""A lost connection is seldom a row's doing: so many of them, under a row that was alone, count as one death."""


@dataclass(frozen=True)
class Group:
    """Rows that are tried together and without others; `home` is the server that fell under them, "" for any."""

    rows: tuple[Row, ...]
    home: str = ""


class Suspects:
    """Takes who was in flight at a death, and says which rows to try together next.

    Most deaths are nobody's fault, so all go together first. A group under which the engine dies again is halved; rows
    that were answered meanwhile are cleared. A row alone under which it died `kills` times is condemned. `deaths` are
    those of rows alone that were counted before, by the rows' numbers; `note` is told each new count.
    """

    def __init__(
        self, kills: int, deaths: dict[int, int] | None = None, note: Callable[[int, int], None] | None = None
    ) -> None:
        self.deaths = dict(deaths or {})
        self._kills = kills
        self._note = note or (lambda number, deaths: None)
        self._losses: dict[int, int] = {}
        self._groups: list[Group] = []

    def add_alone(self, row: Row) -> None:
        """A row under which engines have died in an earlier life of the job."""
        self._groups.insert(0, Group((row,)))

    def fell(self, home: str, rows: Sequence[Row]) -> None:
        """A server's engine died, or the server was lost, with these rows of many in flight."""
        if rows:
            self._groups.append(Group(_in_order(rows), home))

    def next(self, home: str, away: Callable[[str], bool] = lambda home: False) -> Group | None:
        """What to try next on that server: its own groups, and those whose server is `away`."""
        for place in range(len(self._groups) - 1, -1, -1):
            group = self._groups[place]
            if group.home in ("", home) or away(group.home):
                return self._groups.pop(place)
        return None

    def fell_again(self, home: str, group: Group, rows: Sequence[Row], died: bool) -> list[Row]:
        """It died (or else: was lost) under a group, with these of its rows unanswered; those now condemned."""
        if not rows:
            return []
        if len(group.rows) > 1:
            ordered = _in_order(rows)
            half = -(-len(ordered) // 2)
            for part in (ordered[half:], ordered[:half]):
                if part:
                    self._groups.append(Group(part, home))
            return []
        row = rows[0]
        if self._count(row.number, died) >= self._kills:
            self.forget(row.number)
            return [row]
        self._groups.append(Group((row,), home))
        return []

    def put_back(self, group: Group) -> None:
        """A group that was not tried after all."""
        self._groups.append(group)

    def forget(self, number: int) -> None:
        """The row has ended."""
        self.deaths.pop(number, None)
        self._losses.pop(number, None)

    def sentence(self, row: Row) -> InflightError:
        return InflightError(
            f"engines died under row {row.id!r} each of the {self._kills} times that it was asked alone; look at the"
            " row, and at the engine's log",
            "row_kills_engine",
        )

    @property
    def empty(self) -> bool:
        return not self._groups

    def _count(self, number: int, died: bool) -> int:
        if not died:
            self._losses[number] = losses = self._losses.get(number, 0) + 1
            if losses % LOSSES_A_DEATH:
                return self.deaths.get(number, 0)
        self.deaths[number] = deaths = self.deaths.get(number, 0) + 1
        self._note(number, deaths)
        return deaths


def _in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.number))

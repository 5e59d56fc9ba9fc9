"""Finds poison rows: rows that were in flight when an engine crashed are tried apart from all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inflight_client import InflightError

from inflight.batch.job.rows import Row

LOSSES_PER_CRASH = 4
"""Lost connections of a single row that count as one crash, since they are rarely the row's fault."""


@dataclass(frozen=True)
class SuspectGroup:
    """Rows that are tried together and alone; `server` is the one that crashed with them, "" for any."""

    rows: tuple[Row, ...]
    server: str = ""


class PoisonRowFinder:
    """Records which rows were in flight at a crash, and chooses the rows to try together next.

    Most crashes are not a row's fault, so all suspects are tried together first. If the engine crashes again, the group
    is halved; rows that were answered are cleared. A single row with `max_engine_crashes` crashes is condemned.
    `crash_counts` are earlier crashes of single rows, by row number; `on_crash` receives each new count.
    """

    def __init__(
        self,
        max_engine_crashes: int,
        crash_counts: dict[int, int] | None = None,
        on_crash: Callable[[int, int], None] | None = None,
    ) -> None:
        self.crash_counts = dict(crash_counts or {})
        self._max_engine_crashes = max_engine_crashes
        self._on_crash = on_crash or (lambda number, deaths: None)
        self._losses: dict[int, int] = {}
        self._groups: list[SuspectGroup] = []

    def add_known_suspect(self, row: Row) -> None:
        """Add a row with engine crashes in an earlier run of the job."""
        self._groups.insert(0, SuspectGroup((row,)))

    def add_crash(self, server: str, rows: Sequence[Row]) -> None:
        """A server's engine crashed, or the server was lost, with these rows among others in flight."""
        if rows:
            self._groups.append(SuspectGroup(_in_order(rows), server))

    def next_group(
        self, server: str, is_unavailable: Callable[[str], bool] = lambda home: False
    ) -> SuspectGroup | None:
        """Return the next group for this server: one of its own, or of a server that is unavailable."""
        for place in range(len(self._groups) - 1, -1, -1):
            group = self._groups[place]
            if group.server in ("", server) or is_unavailable(group.server):
                return self._groups.pop(place)
        return None

    def add_group_crash(self, server: str, group: SuspectGroup, rows: Sequence[Row], engine_died: bool) -> list[Row]:
        """Record a crash (or a lost server) with these rows of a group unanswered; return those now condemned."""
        if not rows:
            return []
        if len(group.rows) > 1:
            ordered = _in_order(rows)
            half = -(-len(ordered) // 2)
            for part in (ordered[half:], ordered[:half]):
                if part:
                    self._groups.append(SuspectGroup(part, server))
            return []
        row = rows[0]
        if self._count_crash(row.number, engine_died) >= self._max_engine_crashes:
            self.forget(row.number)
            return [row]
        self._groups.append(SuspectGroup((row,), server))
        return []

    def put_back(self, group: SuspectGroup) -> None:
        """Return a group that was not tried."""
        self._groups.append(group)

    def forget(self, number: int) -> None:
        """Forget a row that is done."""
        self.crash_counts.pop(number, None)
        self._losses.pop(number, None)

    def error_for(self, row: Row) -> InflightError:
        return InflightError(
            f"the engine crashed all {self._max_engine_crashes} times that row {row.id!r} was sent alone;"
            " inspect the row and the engine's log",
            "row_crashed_engine",
        )

    @property
    def empty(self) -> bool:
        return not self._groups

    def _count_crash(self, number: int, engine_died: bool) -> int:
        if not engine_died:
            self._losses[number] = losses = self._losses.get(number, 0) + 1
            if losses % LOSSES_PER_CRASH:
                return self.crash_counts.get(number, 0)
        self.crash_counts[number] = deaths = self.crash_counts.get(number, 0) + 1
        self._on_crash(number, deaths)
        return deaths


def _in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.number))

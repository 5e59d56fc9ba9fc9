"""How a running job looks: a live bar on a terminal, a line a minute in a pipe. Nothing of prompts and answers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from inflight.batch.seen import words
from inflight.batch.seen.progress import Progress, State

LINE_SECONDS = 60.0


@dataclass(frozen=True)
class Screen:
    """`show` is given how the job stands, each second or so; `say` sentences for people, which stay above the bar."""

    show: Callable[[Progress], None]
    say: Callable[[str], None]


@contextmanager
def following(name: str, console: Console | None = None) -> Iterator[Screen]:
    """The screen of a job's life: a bar on a terminal, lines elsewhere, both on standard error."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield Screen(Lines(name), print_line)
        return
    bar = Bar(name)
    with Live(get_renderable=bar.rendered, console=console, refresh_per_second=4) as live:
        live.refresh()
        yield Screen(bar.show, lambda sentence: console.print(Text(sentence)))
        live.refresh()


def print_line(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Lines:
    """A line at the beginning, one a minute, one at each change of the state, one at the end."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._name, self._clock, self._say = name, clock, say or print_line
        self._state: State | None = None
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        if progress.state is not self._state or now >= self._next:
            self._say(f"{self._name}: {words.line(progress)}")
            self._state, self._next = progress.state, now + LINE_SECONDS


class Bar:
    """Three lines: the bar with rows and ETA, speed and cost, and what went wrong, where something did."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opening = Spinner("dots", text=f"{name}: opening the job")
        self._spinner = Spinner("dots")
        self._last: Progress | None = None

    def show(self, progress: Progress) -> None:
        self._last = progress

    def rendered(self) -> RenderableType:
        if self._last is None:
            return self._opening
        now = self._last
        lines: list[RenderableType] = [self._first(now), Text(f"  {_second(now)}", style="dim")]
        if now.counts.codes or now.counts.retries:
            lines.append(Text(f"  {words.troubles(now)}", style="yellow"))
        return Group(*lines)

    def _first(self, now: Progress) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        mark: RenderableType = self._spinner if now.state.lives else Text("✓" if now.state is State.FINISHED else "■")
        bar = ProgressBar(
            total=None if now.done is None else 1.0,
            completed=now.done or 0.0,
            width=24,
            pulse=now.done is None and now.state.lives,
        )
        state = "" if now.state is State.RUNNING else f" {now.state}"
        row.add_row(mark, Text(self._name + state), bar, Text(words.rows(now)), Text(words.ahead(now)))
        return row


def _second(now: Progress) -> str:
    up = sum(server.up for server in now.servers)
    servers = f"{up} of {len(now.servers)} servers up" if len(now.servers) > 1 else ""
    flight = f"{now.in_flight:,} in flight" + (f" of {now.limit:,}" if now.limit is not None else "")
    again = f"{now.waiting:,} to be sent again" if now.waiting else ""
    parts = (words.speed(now), flight if now.state.lives else "", again, servers, words.spent(now.cost))
    return ", ".join(filter(None, parts))

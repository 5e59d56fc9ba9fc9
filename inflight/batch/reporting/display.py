"""Shows a running job: a live bar on a terminal, one line per minute in a pipe. Never shows prompts or answers."""

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

from inflight.batch.reporting import formatting
from inflight.batch.reporting.progress import JobProgress, JobState

LINE_SECONDS = 60.0


@dataclass(frozen=True)
class JobDisplay:
    """A display: `on_progress` is called about once a second; `on_message` prints sentences above the bar."""

    on_progress: Callable[[JobProgress], None]
    on_message: Callable[[str], None]


@contextmanager
def job_display(name: str, console: Console | None = None, quiet: bool = False) -> Iterator[JobDisplay]:
    """Yield the display for a run of a job: a bar on a terminal, otherwise lines, both on standard error.

    With `quiet` it shows nothing.
    """
    if quiet:
        yield JobDisplay(lambda progress: None, lambda sentence: None)
        return
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield JobDisplay(LineDisplay(name), print_line)
        return
    bar = LiveDisplay(name)
    with Live(get_renderable=bar.rendered, console=console, refresh_per_second=4) as live:
        live.refresh()
        yield JobDisplay(bar.update, lambda sentence: console.print(Text(sentence)))
        live.refresh()


def print_line(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class LineDisplay:
    """Progress as lines: at the start, once a minute, at each change of the state, and at the end."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self._name, self._clock, self._on_message = name, clock, on_message or print_line
        self._state: JobState | None = None
        self._next = 0.0

    def __call__(self, progress: JobProgress) -> None:
        now = self._clock()
        if progress.state is not self._state or now >= self._next:
            self._on_message(f"{self._name}: {formatting.format_line(progress)}")
            self._state, self._next = progress.state, now + LINE_SECONDS


class LiveDisplay:
    """Progress as three lines: a bar with rows and ETA, throughput and cost, and failures if there are any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opening = Spinner("dots", text=f"{name}: opening the job")
        self._spinner = Spinner("dots")
        self._last: JobProgress | None = None

    def update(self, progress: JobProgress) -> None:
        self._last = progress

    def rendered(self) -> RenderableType:
        if self._last is None:
            return self._opening
        now = self._last
        lines: list[RenderableType] = [self._first(now), Text(f"  {_second(now)}", style="dim")]
        if now.counts.codes or now.counts.retries:
            lines.append(Text(f"  {formatting.format_failures(now)}", style="yellow"))
        return Group(*lines)

    def _first(self, now: JobProgress) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        mark: RenderableType = (
            self._spinner if now.state.is_active else Text("✓" if now.state is JobState.FINISHED else "■")
        )
        bar = ProgressBar(
            total=None if now.fraction_done is None else 1.0,
            completed=now.fraction_done or 0.0,
            width=24,
            pulse=now.fraction_done is None and now.state.is_active,
        )
        state = "" if now.state is JobState.RUNNING else f" {now.state}"
        row.add_row(
            mark, Text(self._name + state), bar, Text(formatting.format_rows(now)), Text(formatting.format_eta(now))
        )
        return row


def _second(now: JobProgress) -> str:
    up = sum(server.up for server in now.servers)
    servers = f"{up} of {len(now.servers)} servers up" if len(now.servers) > 1 else ""
    retries = f"{now.pending_retries:,} waiting for a retry" if now.pending_retries else ""
    parts = (
        formatting.format_throughput(now),
        formatting.format_flight(now) if now.state.is_active else "",
        retries,
        servers,
        formatting.format_cost(now.cost),
    )
    return ", ".join(filter(None, parts))

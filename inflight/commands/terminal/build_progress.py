"""Progress of long work: a moving bar on a terminal, one line per step in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from build_engines.progress import BuildProgress, NoBuildProgress

_LINE_SECONDS = 10.0


def _sizes(done: float, total: float) -> str:
    return f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"


class BuildProgressLines:
    """Progress as lines on standard error, one for each step and for each 10 s of a long one."""

    def __init__(self) -> None:
        self._last = 0.0

    def step(self, sentence: str) -> None:
        click.echo(sentence, err=True)
        self._last = time.monotonic()

    def advance(self, done: int, total: int) -> None:
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            click.echo(f"  {_sizes(done, total)}", err=True)


class SizesColumn(ProgressColumn):
    """The bytes of a step that is not finished, if its size is known."""

    def render(self, task: Task) -> Text:
        return Text("" if task.finished or not task.total else _sizes(task.completed, task.total))


class BuildProgressBar:
    """Progress as a list of steps with their times; the current one has a bar if its size is known."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def step(self, sentence: str) -> None:
        self.finish()
        self._task = self._progress.add_task(sentence, total=None)

    def advance(self, done: int, total: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def finish(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=1, total=1)
            self._progress.stop_task(self._task)


@contextmanager
def show_build_progress(quiet: bool = False) -> Iterator[BuildProgress]:
    """Yield the display that suits standard error; with `quiet` one that shows nothing."""
    if quiet:
        yield NoBuildProgress()
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield BuildProgressLines()
        return
    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(24),
        SizesColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = BuildProgressBar(progress)
        yield bar
        bar.finish()

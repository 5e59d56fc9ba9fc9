"""Progress of long work: a moving bar on a terminal, one line per step in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class ProgressDisplay(Protocol):
    """A progress display: `step` starts a step, `advance` updates it. Matches the progress type of `build_engines`."""

    def step(self, sentence: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...


class BuildProgressLines:
    """Progress as one line per step on standard error; standard output is for results."""

    def step(self, sentence: str) -> None:
        click.echo(sentence, err=True)

    def advance(self, done: int, total: int) -> None:
        pass


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
def show_build_progress() -> Iterator[ProgressDisplay]:
    """Yield the display that suits standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield BuildProgressLines()
        return
    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(24),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = BuildProgressBar(progress)
        yield bar
        bar.finish()

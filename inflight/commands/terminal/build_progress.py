"""How long work looks on a terminal (a bar that moves) and in a pipe (a plain line for each step)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class ProgressDisplay(Protocol):
    """A step begins; so much of it is done. Fits what `build_engines` calls its progress."""

    def step(self, sentence: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...


class BuildProgressLines:
    """One line for each step on standard error, which leaves standard output to results."""

    def step(self, sentence: str) -> None:
        click.echo(sentence, err=True)

    def advance(self, done: int, total: int) -> None:
        pass


class BuildProgressBar:
    """Steps above one another, each with its time, the present one with a bar as far as it is known."""

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
    """Yield what shows progress best where standard error goes."""
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

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from inflight.commands.terminal import build_progress
from inflight.commands.terminal.build_progress import BuildProgressBar, BuildProgressLines, SizesColumn


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_pipe_gets_the_sizes_of_long_steps_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float
) -> None:
    monkeypatch.setattr(build_progress, "_LINE_SECONDS", seconds)
    progress = BuildProgressLines()
    progress.step("Downloading")
    progress.advance(12_000_000, 988_000_000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Downloading\n" + ("" if seconds else "  12 of 988 MB\n")


def test_a_terminal_shows_the_sizes_until_the_step_is_finished() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    progress = Progress(SizesColumn(), console=console)
    bar = BuildProgressBar(progress)
    bar.step("Downloading")
    bar.advance(12_000_000, 988_000_000)
    column = SizesColumn()
    assert str(column.render(progress.tasks[0])) == "12 of 988 MB"
    bar.step("Converting")
    assert [str(column.render(task)) for task in progress.tasks] == ["", ""]

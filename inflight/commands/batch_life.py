"""A life of a job as `run`, `resume` and `retry` show it, and the exit code that it ends with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from inflight.batch.job import Job
from inflight.batch.job_directory import JobDirectory
from inflight.batch.seen.metrics import published
from inflight.batch.seen.progress import Progress, State
from inflight.batch.seen.screen import following, print_line
from inflight.batch.seen.standing import resume_command
from inflight.commands.standard_streams import unheard_goes_nowhere

if TYPE_CHECKING:
    from inflight.batch.runner import End, Runner

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def end_options(function: Decorated) -> Decorated:
    """Decorate a command with what is shown and what counts as failed, for `live`."""
    options = [
        click.option(
            "--allow-failed",
            metavar="N|P%",
            help="Exit with 0 if no more than this number or share of rows failed.  [default: 0]",
        ),
        click.option(
            "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics; 0: any free port."
        ),
        click.option(
            "--metrics-file", type=click.Path(path_type=Path), help="Write metrics to a file for node_exporter."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def live(job: Job, directory: JobDirectory, asked: dict[str, Any], again: Sequence[str] | None = None) -> None:
    """Live one life of the job, and exit as it ends. Raises BatchError where it can't be begun.

    Who closes the terminal, or ends what reads the job's output, ends neither the job nor its exit code.
    """
    allowed = _allowed(asked["allow_failed"])
    with unheard_goes_nowhere():
        end = _lived(job, directory, asked, again)
        code = exit_code(end, allowed)
        if asked["as_json"]:
            click.echo(json.dumps(_values(end, directory, code)))
        elif end.state is State.FINISHED:
            click.echo(_summary(directory))
        else:
            click.echo("\n".join(_how_it_ended(end, directory)), err=True)
    sys.exit(code)


def _lived(job: Job, directory: JobDirectory, asked: dict[str, Any], again: Sequence[str] | None) -> End:
    """One life, as it is shown."""
    name = directory.path.stem
    with (
        published(name, asked["metrics_port"], asked["metrics_file"], print_line) as publish,
        following(name) as screen,
    ):

        def tell(progress: Progress) -> None:
            publish(progress)
            screen.show(progress)

        return _kind(job)(job, directory, tell, screen.say).run(again)


def _how_it_ended(end: End, directory: JobDirectory) -> Iterator[str]:
    """Why, where that was before the job's end, and how to go on."""
    state = "Error" if end.state is State.FAILED else str(end.state).capitalize()
    yield f"{state}: {end.sentence}" + (f" [{end.code}]" if end.code else "")
    if (directory.path / "job.json").is_file():
        yield f"Resume with: {resume_command(directory)}"


def _summary(directory: JobDirectory) -> str:
    """The one that the job has written of itself, unless somebody has removed it."""
    try:
        return directory.summary.read_text(encoding="utf-8").rstrip()
    except OSError:
        return f"The job at {directory.path} is finished."


def _kind(job: Job) -> type[Runner]:
    """Imported only now: what it takes to ask a server takes a while, and the screen is there by then."""
    if job.running.runner == "local":
        from inflight.batch.runner import Runner

        return Runner
    from inflight.batch.ray_runner.runner import RayRunner

    return RayRunner


def exit_code(end: End, allowed: Callable[[int], float]) -> int:
    """The End's own, but 0 where no more rows failed than may."""
    failed = end.counts.error + end.counts.dead
    if end.state is State.FINISHED and failed <= allowed(end.counts.done):
        return 0
    return end.exit_code


def _values(end: End, directory: JobDirectory, code: int) -> dict[str, Any]:
    return {
        "state": end.state,
        "exit_code": code,
        "sentence": end.sentence,
        "code": end.code,
        "job": str(directory.path),
        "written": end.written,
        **end.counts.values(),
    }


def _allowed(given: str | None) -> Callable[[int], float]:
    """How many of so many rows may fail."""
    text = (given or "0").strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e18:
        raise click.BadParameter(
            f"{given!r} is neither a number of rows nor a percentage.", param_hint="'--allow-failed'"
        )
    return (lambda rows: rows * number / 100) if text.endswith("%") else (lambda rows: number)

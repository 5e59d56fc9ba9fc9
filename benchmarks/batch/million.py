"""`make bench`: a million short rows that the job's own process answers at once: the cost of a job without a model.

Everything else is as usual: rows are read and written as JSON lines, ids are checked for duplicates (one in a thousand
is one), and there is a checkpoint each half second. The job is killed (SIGKILL) when nine tenths are done, and resumed.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY

_WORK = BENCH_DIRECTORY / "million"
_DUPLICATE_INTERVAL = 1000
_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class MillionRun:
    """One process of the job. Seconds from its start until the first row was sent, and until its end.

    Memory is resident, in MiB: the maximum, and the medians of the second tenth and of the last tenth of its time.
    """

    first_row: float
    seconds: float
    rows: int
    peak: float
    early: float
    late: float


@click.command(help=__doc__)
@click.option("--rows", default=1_000_000, show_default=True)
@out_option("batch_million")
def main(rows: int, out: Path) -> None:
    shutil.rmtree(_WORK, ignore_errors=True)
    _WORK.mkdir(parents=True)
    _write(rows)
    killed = _run_job(until=round(rows * 0.9), before=0)
    rest = _run_job(until=None, before=killed.rows)
    _check(rows)
    figures = []
    for name, run in (("killed", killed), ("resumed", rest)):
        speed = run.rows / (run.seconds - run.first_row)
        figures += [
            Figure(f"rows/s, {name} run", [speed], ">= 5000"),
            Figure(f"first row after, {name} run", [run.first_row], "<= 5", "s"),
            Figure(f"resident memory at most, {name} run", [run.peak], "<= 300", "MiB"),
        ]
    figures.append(Figure("resident memory, last tenth / second tenth of the killed run", [killed.late / killed.early]))
    report(out, figures, {"killed": asdict(killed), "resumed": asdict(rest)})
    shutil.rmtree(_WORK)


def _write(rows: int) -> None:
    with (_WORK / "rows.jsonl").open("w") as file:
        for number in range(rows):
            source_row = number if (number + 1) % _DUPLICATE_INTERVAL else number - 7
            file.write(f'{{"id": "row-{source_row:07}", "prompt": "Say something of thing {number}."}}\n')


def _run_job(until: int | None, before: int) -> MillionRun:
    """Run the job; kill it once this many rows are done."""
    first = _WORK / "first"
    first.unlink(missing_ok=True)
    progress = _WORK / "answers.job" / "progress.json"
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.batch.million_run"]
    files = [str(_WORK / "rows.jsonl"), str(_WORK / "answers.jsonl"), str(first)]
    process = psutil.Popen([*command, *files])
    sizes: list[float] = []
    done = 0
    while process.poll() is None:
        try:
            sizes.append(process.memory_info().rss / 2**20)
        except psutil.Error:
            break
        if progress.exists():
            done = json.loads(progress.read_text())["counts"]
            done = done["ok"] + done["error"] + done["dead"]
            if until is not None and done >= until:
                process.kill()
        time.sleep(_POLL_SECONDS)
    code = process.wait()
    if code != (-9 if until is not None else 3):
        raise click.ClickException(f"The job exited with {code}.")
    seconds = time.monotonic() - began
    if until is None:
        done = sum(1 for _ in (_WORK / "rows.jsonl").open("rb"))
    tenth = max(1, len(sizes) // 10)
    early, late = statistics.median(sizes[tenth : 2 * tenth] or sizes), statistics.median(sizes[-tenth:])
    return MillionRun(float(first.read_text()) - began, seconds, done - before, max(sizes), early, late)


def _check(rows: int) -> None:
    """Check that each id occurs once, in the order of the input, and all duplicates are dead letters."""
    number = 0
    with (_WORK / "answers.jsonl").open("rb") as file:
        for line in file:
            while not (number + 1) % _DUPLICATE_INTERVAL:
                number += 1
            if json.loads(line)["id"] != f"row-{number:07}":
                raise click.ClickException(f"Answer {number} is {line!r}.")
            number += 1
    dead = sum(1 for _ in (_WORK / "answers.dead.jsonl").open("rb"))
    if number != rows - (rows % _DUPLICATE_INTERVAL == 0) or dead != rows // _DUPLICATE_INTERVAL:
        raise click.ClickException(f"There are answers up to row {number} and {dead} dead letters, of {rows} rows.")


if __name__ == "__main__":
    main()

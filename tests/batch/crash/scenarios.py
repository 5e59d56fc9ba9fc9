"""Jobs of each kind that changes files in a different way, killed at each point where it does."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import fsspec

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.verify.checker import verify
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import lines_of, write_rows
from tests.batch.outputs.shop import Shop

ROWS = 100
FAILED = 3
"""The exit code of a job that came to its end with rows that failed."""


@dataclass(frozen=True)
class Scenario:
    """What a job writes to ({}: its folder), and its processes: the `last` is the one killed at each point in turn.

    `before` are those before it, and the points where these are killed, if any. Where all rows are `plain` none fails.
    """

    output: str = "answers.jsonl"
    before: tuple[tuple[str, str], ...] = ()
    last: tuple[str, ...] = ("run",)
    options: tuple[str, ...] = ("--max-tokens", "4")
    plain: bool = False
    seconds: float = 60.0


SCENARIOS = {
    "lines": Scenario(),
    "torn": Scenario(before=(("run", "lines.written:3:kill"),), last=("resume",)),
    "retry": Scenario(before=(("run", ""),), last=("retry", "--only", "prompt_too_long")),
    "file": Scenario("{}/answers.csv", plain=True),
    "table": Scenario(
        "sqlite:///{}/shop.db",
        options=("--max-tokens", "4", "--output-table", "answers", "--key", "id", "--column", "text"),
    ),
}
VECTORS = Scenario(
    "{}",
    options=("--task", "embed", "--prompt", "prompt", "--table", "docs", "--column", "embedding", "--keep", "prompt"),
)
STORAGE = Scenario("s3://{}/answers.csv")
RAY = Scenario(options=("--max-tokens", "4", "--runner", "ray", "--workers", "2"), seconds=200.0)


@dataclass
class Trial:
    """One job of a scenario, in a separate folder. `environment` is that of each process."""

    scenario: Scenario
    lives: JobProcesses
    server: str
    folder: Path
    place: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        ids = write_rows(self.folder.parent / "rows.jsonl", ROWS, odd=not self.scenario.plain)
        output = self.scenario.output
        self.out = output.format(self.place or self.folder) if "{" in output else str(self.folder / output)
        if "sqlite" in self.out:
            with closing(sqlite3.connect(self.folder / "shop.db")) as database, database:
                database.execute("CREATE TABLE answers(id TEXT PRIMARY KEY, text TEXT)")
                database.executemany("INSERT INTO answers(id) VALUES (?)", [(id_,) for id_ in sorted(set(ids))])
        for command, point in self.scenario.before:
            code = self.live((command,), point)
            assert code == (-9 if point else self.ended)

    @property
    def ended(self) -> int:
        """The exit code of a process that comes to the job's end."""
        return 0 if self.scenario.plain else FAILED

    def live(self, command: tuple[str, ...], failpoint: str = "") -> int:
        life = self.lives.start(*self.arguments(command), failpoint=failpoint, environment=self.environment)
        return life.wait(self.scenario.seconds)

    def noted(self) -> dict[str, int]:
        """Run the last process to its end; return the points that it came by, and how often."""
        arguments = self.arguments(self.scenario.last)
        life = self.lives.start(*arguments, note=True, environment=self.environment)
        assert life.wait(self.scenario.seconds) == self.ended, life.said
        return life.reached()

    def die(self, point: str, number: int) -> None:
        """Kill the last process at the point, the `number`th time that it is there, and resume to the end."""
        code = self.live(self.scenario.last, f"{point}:{number}:kill")
        assert code == -9 or (code == self.ended and number > 1), f"it ended with {code} at {point}"
        if code == -9:
            assert self.live(self._again) == self.ended, f"it does not go on from {point}"

    def die_at_each(self, points: list[str]) -> list[str]:
        """Kill one process after another, each at the next point, and let the last one come to the end.

        Return the points that were left when a process came to the end without passing its own.
        """
        command = self.scenario.last
        for number, point in enumerate(points):
            code = self.live(command, f"{point}:1:kill")
            assert code == -9 or (code == self.ended and number > 0), f"it ended with {code} at {point}"
            if code != -9:
                return points[number:]
            command = self._again
        assert self.live(command) == self.ended, f"it does not go on from {points[-1]}"
        return []

    @property
    def _again(self) -> tuple[str, ...]:
        """How it is gone on with; one that died before it was begun is begun again."""
        return ("resume",) if (self.folder / "job" / "job.json").exists() else ("run",)

    def came_to(self) -> tuple[dict[RowStatus, bytes], object]:
        """The job's own files of lines, and its output. The job says itself that it agrees."""
        directory = JobDirectory.find(self.folder / "job")
        verdict = verify(directory)
        assert verdict.complete, verdict
        if "sqlite" in self.out:
            with closing(sqlite3.connect(self.folder / "shop.db")) as database:
                return lines_of(directory.path), database.execute("SELECT id, text FROM answers ORDER BY id").fetchall()
        if "postgresql" in self.out:
            return lines_of(directory.path), _table_of(self.out)
        endpoint = self.environment.get("AWS_ENDPOINT_URL")
        with fsspec.open(self.out, **({"endpoint_url": endpoint} if endpoint else {})) as file:
            return lines_of(directory.path), file.read()

    def arguments(self, command: tuple[str, ...]) -> tuple[str, ...]:
        job = str(self.folder / "job")
        running = ("--server", self.server, "--checkpoint-seconds", "0.03")
        if command[0] != "run":
            return (command[0], job, *command[1:], *running)
        more = (*self.scenario.options, "--out", self.out, "--job", job, "--id", "id")
        return ("run", str(self.folder.parent / "rows.jsonl"), *more, *running)


def _table_of(address: str) -> list[tuple[object, ...]]:
    """The rows of the table with their vectors, and how many indexes it has."""
    shop = Shop(address)
    rows = shop.rows("SELECT id, embedding::text, prompt, input_tokens FROM docs ORDER BY id")
    indexes = shop.rows("SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%USING hnsw%'")
    shop.close()
    return rows + indexes

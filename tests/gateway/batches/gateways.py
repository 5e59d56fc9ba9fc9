"""Stores and runners as tests use them: in this process, and in one that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.batch.job.spec import RunOptions
from inflight.common.child_process import python_module
from inflight.gateway.batches.database import Database
from inflight.gateway.batches.files import FileStore
from inflight.gateway.batches.runner import BatchRunner
from inflight.gateway.batches.store import BatchStore, job_directory
from tests.fixtures.waiting import wait_until

ENDPOINT = "/v1/completions"
OPTIONS = RunOptions(
    checkpoint_seconds=0.05, server_wait_timeout=2.0, drain_seconds=0.5, concurrency=4, order="arrival"
)
FINAL = ("completed", "failed", "expired", "cancelled")


def request(number: int, **changes: Any) -> dict[str, Any]:
    """A line of an input; the answers of the tests' engines depend on the prompt alone."""
    body = {"model": "tiny", "prompt": f"tea {number} cup", "max_tokens": 1 + number % 5, "ignore_eos": True}
    return {"custom_id": f"row-{number:05}", "method": "POST", "url": ENDPOINT, "body": body, **changes}


def lines(requests: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


@dataclass
class Stores:
    """The stores in one directory."""

    root: Path
    window_seconds: float = 3600.0

    def __post_init__(self) -> None:
        self.database = Database(self.root)
        self.files = FileStore(self.database)
        self.batches = BatchStore(self.database, self.files, window_seconds=self.window_seconds)

    def upload(self, content: bytes, tenant: str = "") -> str:
        file_id: str = self.files.create(tenant, "rows.jsonl", "batch", None, [content])["id"]
        return file_id

    def batch(self, content: bytes, tenant: str = "") -> str:
        """Create a batch of this input; return its id."""
        batch_id: str = self.batches.create(tenant, self.upload(content, tenant), ENDPOINT, "24h")["id"]
        return batch_id

    def content(self, file_id: str | None, tenant: str = "") -> bytes:
        if file_id is None:
            return b""
        with self.files.open_content(tenant, file_id) as file:
            return file.read()

    def path(self, batch_id: str) -> Path:
        return self.batches.root / batch_id

    def output(self, batch_id: str) -> Path:
        return self.path(batch_id) / "output.jsonl"

    def wait(self, batch_id: str, *statuses: str, tenant: str = "") -> dict[str, Any]:
        """Wait until the batch has one of these states, by default a final one."""
        found: dict[str, Any] = {}

        def reached() -> bool:
            found.update(self.batches.get(tenant, batch_id))
            return found["status"] in (statuses or FINAL)

        wait_until(reached, f"{statuses or 'the end'} of the batch")
        return found

    def wait_for_answers(self, batch_id: str, count: int = 1) -> None:
        """Wait until the job has written so many answers."""
        output = self.output(batch_id)
        wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") >= count)

    def records(self, batch: dict[str, Any], tenant: str = "") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The lines of output and error file."""
        texts = (self.content(batch[field], tenant) for field in ("output_file_id", "error_file_id"))
        answers, errors = ([json.loads(line) for line in text.splitlines()] for text in texts)
        return answers, errors

    def job_pids(self) -> list[int]:
        """The processes of the jobs that run now."""
        found = []
        for path in self.batches.root.iterdir():
            progress = job_directory(path).progress
            if progress.exists():
                found.append(json.loads(progress.read_text())["pid"])
        return found


def check_once_each(stores: Stores, batch: dict[str, Any], count: int) -> None:
    """Each request has one line in one of the files, and the counts are those of the files."""
    answers, errors = stores.records(batch)
    ids = Counter(each["custom_id"] for each in (*answers, *errors))
    assert ids == {f"row-{number:05}": 1 for number in range(count)}
    assert batch["request_counts"] == {"total": count, "completed": len(answers), "failed": len(errors)}


def without_created(text: bytes) -> list[dict[str, Any]]:
    """Answers without the moment at which their job began."""
    found = [json.loads(line) for line in text.splitlines()]
    for each in found:
        del each["response"]["body"]["created"]
    return found


def run_directly(rows: bytes, server: str, folder: Path) -> Path:
    """The output of the same job by `inflight batch run`."""
    (folder / "rows.jsonl").write_bytes(rows)
    out = folder / "answers.jsonl"
    run = ("batch", "run", str(folder / "rows.jsonl"), "--row-format", "openai", "--out", str(out), "--server", server)
    command = [str(Path(sys.executable).with_name("inflight")), *run]
    assert subprocess.run(command, check=False, capture_output=True).returncode in (0, 3)
    return out


@contextmanager
def running(stores: Stores, servers: Sequence[str], **options: Any) -> Iterator[BatchRunner]:
    """A runner in this process, which is stopped at the end."""
    runner = BatchRunner(stores.batches, stores.files, servers, **{"run_options": OPTIONS, **options})
    runner.start()
    try:
        yield runner
    finally:
        runner.stop(1.0)


class RunnerProcess:
    """A runner in a process of its own, as in a worker of the gateway."""

    def __init__(self, stores: Stores, server: str, concurrency: int = 4) -> None:
        self.process = subprocess.Popen(
            python_module("tests.gateway.batches.gateways", str(stores.root), server, str(concurrency)),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def main(root: str, server: str, concurrency: str) -> None:
    options = OPTIONS.model_copy(update={"concurrency": int(concurrency)})
    with running(Stores(Path(root)), [server], run_options=options):
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The process of batch_million.py: a life of a job whose rows are answered at once, in this process.

`python -m benchmarks.batch_million_life INPUT OUTPUT FIRST`: the moment of the first row is written to FIRST.
"""

from __future__ import annotations

import sys
import time
from asyncio import sleep
from pathlib import Path

from inflight_client.results import Generation, Timings, Usage

from inflight.batch.backend import Load
from inflight.batch.job import InputSpec, Job, OutputSpec, Running
from inflight.batch.job_directory import JobDirectory
from inflight.batch.row import Ask
from inflight.batch.runner import Runner

_TIMINGS = Timings(0.0, 0.0)


class AtOnce:
    """Answers a row with its own prompt, in the event loop's next turn."""

    name = "in this process"

    def __init__(self, first: Path) -> None:
        self._first: Path | None = first

    async def ask(self, ask: Ask, request_id: str) -> Generation:
        if self._first is not None:
            self._first.write_text(str(time.monotonic()))
            self._first = None
        await sleep(0)
        assert isinstance(ask.prompt, str)
        return Generation(ask.prompt, "length", Usage(8, 8), _TIMINGS, request_id)

    async def load(self) -> Load:
        return Load()

    async def ready(self) -> bool:
        return True

    async def build(self) -> str:
        return "in this process"

    async def close(self) -> None:
        pass


def main(rows: str, out: str, first: str) -> int:
    output = OutputSpec(address=out)
    job = Job(input=InputSpec(address=rows, id="id"), output=output, running=Running(servers=("in this process",)))
    end = Runner(job, JobDirectory.of(output), backends=[AtOnce(Path(first))]).run()
    print(end.state, end.sentence, end.counts.ok, end.counts.dead)
    return end.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

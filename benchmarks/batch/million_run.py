"""The process of benchmarks.batch.million: one run of a job whose rows this process answers at once.

`python -m benchmarks.batch.million_run INPUT OUTPUT FIRST`: the time of the first row is written to FIRST.
"""

from __future__ import annotations

import sys
import time
from asyncio import sleep
from collections.abc import Sequence
from pathlib import Path

from inflight_client.results import Generation, Timings, Usage

from inflight.batch.dispatch.backend import ServerLoad
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import GenerateRequest, RowAnswer, RowRequest
from inflight.batch.job.spec import InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.runner import JobRunner

_TIMINGS = Timings(0.0, 0.0)


class EchoBackend:
    """Answers a row with its own prompt, in the next iteration of the event loop."""

    name = "in this process"

    def __init__(self, first: Path) -> None:
        self._first: Path | None = first

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer]:
        if self._first is not None:
            self._first.write_text(str(time.monotonic()))
            self._first = None
        await sleep(0)
        (request,) = requests
        assert isinstance(request, GenerateRequest)
        return [Generation(request.text, "length", Usage(8, 8), _TIMINGS, request_id)]

    async def load(self) -> ServerLoad:
        return ServerLoad()

    async def ready(self) -> bool:
        return True

    async def build(self) -> str:
        return "in this process"

    def prioritize(self, priority: int) -> bool:
        return False

    async def close(self) -> None:
        pass


def main(rows: str, out: str, first: str) -> int:
    output = OutputSpec(address=out)
    job = Job(
        input=InputSpec(address=rows, id="id"), output=output, run_options=RunOptions(servers=("in this process",))
    )
    end = JobRunner(job, JobDirectory.from_output(output), backends=[EchoBackend(Path(first))]).run()
    print(end.state, end.message, end.counts.ok, end.counts.dead)
    return end.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

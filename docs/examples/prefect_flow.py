"""A Prefect flow that asks a model about every row of an input, and goes on where a stopped job left off.

    INFLIGHT_SERVERS=gpu1:8001,gpu2:8001 python prefect_flow.py prompts.jsonl answers.jsonl

`inflight` (extra `batch`) is on the PATH; Prefect may live in an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

from prefect import flow, get_run_logger, task
from prefect.client.schemas.objects import TaskRun
from prefect.states import State
from prefect.tasks import Task

DONE, ROWS_FAILED, STOPPED = 0, 3, 75


class StoppedError(Exception):
    """Not done yet: the machine was to go away, or no server answered. The same command goes on from there."""


def was_stopped(task: Task, run: TaskRun, state: State) -> bool:
    return isinstance(state.result(raise_on_failure=False), StoppedError)


@task(
    retries=int(os.environ.get("INFLIGHT_RETRIES", "20")),
    retry_delay_seconds=float(os.environ.get("INFLIGHT_RETRY_DELAY", "60")),
    retry_condition_fn=was_stopped,
)
def batch(input_address: str, output_address: str, options: list[str]) -> None:
    """Live one life of the job. Whatever ends this process lets the job finish what is in flight first."""
    command = ["inflight", "batch", "run", input_address, "--out", output_address, *options]
    with subprocess.Popen(command, start_new_session=True) as job:  # a signal to all of a group would be a second one
        try:
            code = job.wait()
        except BaseException:  # Prefect cancels a flow so; leaving `with` waits until the job has drained
            job.terminate()
            raise
    if code == STOPPED:
        raise StoppedError("the job stopped before its end; the next try goes on from there")
    if code == ROWS_FAILED:
        raise RuntimeError(f"more rows failed than --allow-failed allows; see `inflight batch status {output_address}`")
    if code != DONE:
        raise RuntimeError(f"the job failed with exit code {code}; its log says why")


@flow
def answers(input_address: str, output_address: str) -> None:
    servers = os.environ.get("INFLIGHT_SERVERS", "127.0.0.1:8001").split(",")
    options = ["--allow-failed", "1%", *(part for server in servers for part in ("--server", server))]
    batch(input_address, output_address, options)
    get_run_logger().info("All answers are at %s.", output_address)


if __name__ == "__main__":
    answers(*sys.argv[1:3])

"""An Airflow DAG that asks a model about every row of an input each night, and goes on where a stopped job left off.

Put it into the folder of DAGs. `inflight` (extra `batch`) is on the workers' PATH, in any environment; the job's
directory lies beside its output, so tries on different workers want that on a disk that they share.
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta

from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

DONE, ROWS_FAILED, STOPPED = 0, 3, 75


class InflightBatch(BaseOperator):
    """One life of a job with each try. A job that stopped is tried again; one that failed is not."""

    template_fields = ("arguments",)

    def __init__(self, *, arguments: list[str], **options: object) -> None:
        super().__init__(**options)
        self.arguments = arguments
        self._job: subprocess.Popen[bytes] | None = None

    def execute(self, context: Context) -> None:
        # A session of its own: Airflow signals a task's whole group, and a second signal would stop the job at once.
        self._job = subprocess.Popen(["inflight", "batch", "run", *self.arguments], start_new_session=True)
        code = self._job.wait()
        if code == STOPPED:
            raise AirflowException("the job stopped before its end; the next try goes on from there")
        if code == ROWS_FAILED:
            raise AirflowFailException("the job finished, and more rows failed than --allow-failed allows")
        if code != DONE:
            raise AirflowFailException(f"the job failed with exit code {code}; its log says why")

    def on_kill(self) -> None:
        """Airflow wants the task's end: the job finishes what is in flight, and keeps all that it has done.

        It is not waited for here: Airflow calls this as a signal's handler, in the middle of `execute`'s waiting.
        """
        if self._job is not None:
            self._job.terminate()


with DAG(
    "inflight_batch",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # two runs would write the same output
    params={"folder": "/data", "server": "127.0.0.1:8001"},
):
    InflightBatch(
        task_id="answers",
        arguments=[
            "{{ params.folder }}/prompts.jsonl",
            "--out",
            "{{ params.folder }}/answers-{{ dag_run.run_after | ds }}.jsonl",
            "--server",
            "{{ params.server }}",
            "--allow-failed",
            "1%",
        ],
        retries=20,
        retry_delay=timedelta(seconds=float(os.environ.get("INFLIGHT_RETRY_DELAY", "60"))),
    )

"""The child process that validates and runs the job of a batch, or closes it: `python -m ... PARENT`, a Task on stdin.

It prints an Outcome. It ends with its parent, and may be killed at any moment.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from inflight_client import InflightError
from pydantic import BaseModel, ConfigDict

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.connect import connect
from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import GenerationDefaults, InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.runner import TEMPORARY_CODES, JobRunner
from inflight.common.process_guard import die_with_parent
from inflight.gateway.audit.chain import AuditOptions
from inflight.gateway.audit.log import AuditLog
from inflight.gateway.batches.models import BatchModel
from inflight.gateway.batches.row_gate import GatedBackend, RowAudit, RowChecks, RowQuotas
from inflight.gateway.batches.store import input_path, job_directory
from inflight.gateway.batches.validation import encode_spec, read_validation, validate_input, write_validation

MODULE = "inflight.gateway.batches.job_process"
OUTPUT = "output.jsonl"
"""The output of the job, in the directory of the batch."""
_CLOSING = {
    "cancelled": "the batch was cancelled before this request was answered",
    "job_expired": "the completion window ended before this request was answered",
    "job_failed": "the batch failed before this request was answered",
}


class Task(BaseModel):
    """What to do with the batch in directory `path`. `closing`: the code of rows that are not sent any more.

    `models`: those that a request may name; None: any. `key`: the id of the API key whose quotas its rows count to.
    `audit`: where they have their lines. `routes`: the file with their checks, which may need `classifiers`.
    """

    model_config = ConfigDict(frozen=True)
    path: Path
    endpoint: str
    models: dict[str, BatchModel] | None = None
    defaults: GenerationDefaults = GenerationDefaults()
    run_options: RunOptions = RunOptions()
    key: str = ""
    key_file: Path | None = None
    ledger: Path | None = None
    audit: AuditOptions | None = None
    routes: Path | None = None
    classifiers: dict[str, BatchModel] = {}
    headers: dict[str, str] = {}  # `run_options` leaves them out of its JSON
    closing: Literal["cancelled", "job_expired", "job_failed"] | None = None


class Outcome(BaseModel):
    """How it ended. `stopped`: for now, for a reason that may pass; `invalid`: the validation has the errors."""

    model_config = ConfigDict(frozen=True)
    state: Literal["finished", "stopped", "failed", "invalid"]
    code: str = ""
    message: str = ""


def job_of(task: Task, model: str | None) -> tuple[Job, JobDirectory]:
    """Return the job of a batch, which is the one that `inflight batch run` would run, and its directory.

    `model` is the one that its rows name; servers with others get no rows.
    A job that has begun keeps its defaults, also if the gateway is started with others, except the number of an
    adapter: rows are not sent to another one than before.
    """
    servers, adapter = task.run_options.servers, None
    if task.models is not None:
        servers, adapter = task.models.get(model or "", BatchModel(()))
    job = Job(
        input=InputSpec(address=str(input_path(task.path)), format="jsonl", row_format="openai"),
        output=OutputSpec(address=str(task.path / OUTPUT), format="jsonl"),
        defaults=task.defaults,
        encode=encode_spec(task.endpoint),
        run_options=task.run_options.model_copy(update={"headers": task.headers, "servers": servers}),
    )
    directory = JobDirectory.from_output(job.output, job_directory(task.path).path)
    defaults = task.defaults
    with suppress(BatchError):  # the first run has none
        defaults = directory.job().defaults
    if task.closing is None:
        defaults = defaults.model_copy(update={"adapter": adapter})
    return job.model_copy(update={"defaults": defaults}), directory


def perform(task: Task) -> Outcome:
    """Run or close the job once. A run that was cancelled is `stopped`: the batch's state says what comes next."""
    log = AuditLog(task.audit) if task.audit is not None and task.closing is None else None
    try:
        validation = read_validation(task.path)
        if validation is None:
            validation = validate_input(input_path(task.path), task.endpoint, task.models)
            with map_disk_errors(task.path):
                write_validation(task.path, validation)
        if validation.errors:
            return Outcome(state="invalid")
        job, directory = job_of(task, validation.model)
        runner = JobRunner(
            job, directory, backends=_gated(task, job, log, validation.model) if task.closing is None else None
        )
        if task.closing is None:
            result = runner.run()
        else:
            result = runner.close(InflightError(_CLOSING[task.closing], task.closing))
    except BatchError as error:
        # The process of a gateway that was just killed may hold the job for a moment.
        temporary = error.code in (*TEMPORARY_CODES, "job_running")
        return Outcome(state="stopped" if temporary else "failed", code=error.code, message=str(error))
    finally:
        if log is not None:
            log.close()
    state = str(result.state)
    return Outcome(
        state=state if state in ("finished", "failed") else "stopped",  # type: ignore[arg-type]
        code=result.code,
        message=result.message,
    )


def _gated(task: Task, job: Job, log: AuditLog | None, model: str | None) -> list[Backend]:
    """Return the servers of a job, each behind the gate of its rows."""
    quotas = None
    if task.key and task.key_file is not None and task.ledger is not None:
        with map_disk_errors(task.ledger):
            quotas = RowQuotas(task.key_file, task.key, task.ledger)
    options = job.run_options
    backends = (connect(each, options, lambda sentence: None, job.task) for each in options.servers)
    audit = RowAudit(log, task.endpoint, model, task.audit.prompts) if log and task.audit else None
    classifiers = {name: each.servers for name, each in task.classifiers.items()}
    checks = RowChecks(task.routes, model or "", classifiers) if task.routes and job.task == "generate" else None
    return [GatedBackend(each, quotas, task.path, audit, checks) for each in backends]


def main(parent: int) -> int:
    if not die_with_parent(parent):
        return 1
    os.umask(0o077)
    task = Task.model_validate_json(sys.stdin.buffer.read())
    print(perform(task).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""The manifest of a finished job: its spec, results, cost and files."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from inflight import __version__
from inflight.batch.errors import map_disk_errors
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import Job, fingerprint
from inflight.batch.reporting.cost import COST_FORMULA, JobCost
from inflight.batch.session import JobSession
from inflight.batch.storage.addresses import is_local, local_path
from inflight.batch.storage.secret_address import masked


class _ManifestModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class RowTotals(_ManifestModel):
    """`input` = `ok` + `error` + `dead`; `codes`: errors and dead letters by code. `empty` of `ok` have no text.

    `copies` have the answer of an identical row; those of `refined` are of the model of --refine-with.
    """

    input: int
    ok: int
    error: int
    dead: int
    codes: dict[str, int]
    empty: int = 0
    copies: int = 0
    refined: int = 0


class RunTimes(_ManifestModel):
    """`started`, `ended` and the deadline `finish_by` in UTC; `seconds`: the total time of the job's runs."""

    started: datetime
    ended: datetime
    seconds: float
    runs: int
    finish_by: datetime | None = None


class Fingerprints(_ManifestModel):
    """What the job is bound to. `binding`: options of input and output, template and sampling. `model`: the build that
    answered, None if no row was sent.
    """

    input: str
    binding: str
    model: str | None


class ManifestFile(_ManifestModel):
    """`kind`: ok, error or dead for the job's files of lines; output for files created from them."""

    kind: str
    path: str
    bytes: int
    sha256: str


class JobManifest(_ManifestModel):
    """`manifest.json`. Passwords in addresses are masked, and headers are not in it."""

    name: str
    directory: str
    job: dict[str, Any]
    rows: RowTotals
    retries: int
    input_tokens: int
    output_tokens: int
    refine_input_tokens: int = 0
    refine_output_tokens: int = 0
    texts: int = 0
    audio_seconds: float = 0.0
    times: RunTimes
    cost: JobCost | None
    cost_formula: str | None
    versions: dict[str, str]
    fingerprints: Fingerprints
    files: tuple[ManifestFile, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    servers: tuple[str, ...]
    host: str


def build_manifest(session: JobSession, outputs: Sequence[str], notes: Sequence[str] = ()) -> JobManifest:
    """Return the manifest of a job with all rows done. `outputs`: the addresses of its output. Raises BatchError."""
    counts, ledger = session.ledger.counts, session.ledger
    options = session.job.run_options
    cost = JobCost.from_counts(counts, options)
    values = {name: value for name, value in counts.as_dict().items() if name not in ("seconds", "runs")}
    return JobManifest(
        name=session.directory.path.stem,
        directory=str(session.directory.path.absolute()),
        job=_job_without_secrets(session.job),
        rows=RowTotals(input=counts.done, **values),
        **values,
        times=RunTimes(
            started=datetime.fromtimestamp(ledger.recall("created"), UTC),
            ended=datetime.now(UTC).replace(microsecond=0),
            seconds=round(counts.seconds, 3),
            runs=counts.runs,
            finish_by=None if options.finish_by is None else datetime.fromisoformat(options.finish_by),
        ),
        cost=cost,
        cost_formula=None if cost is None else COST_FORMULA,
        versions={"inflight": __version__, "python": platform.python_version(), "system": platform.platform()},
        fingerprints=Fingerprints(
            input=ledger.recall("input"), binding=fingerprint(session.job.binding()), model=ledger.recall("build")
        ),
        files=tuple(_files(session.directory, outputs)),
        outputs=tuple(
            str(local_path(address).absolute()) if is_local(address) else masked(address) for address in outputs
        ),
        notes=tuple(notes),
        servers=() if options.ephemeral else tuple(map(masked, (*options.servers, *options.refine_with))),
        host=socket.gethostname(),
    )


def _job_without_secrets(job: Job) -> dict[str, Any]:
    """Return the job as in its job.json, without secrets."""
    values = job.model_dump(mode="json")
    for part in ("input", "output", "retrieval"):
        if values[part] is not None:
            values[part]["address"] = masked(values[part]["address"])
    for name in ("servers", "retrieve_servers", "refine_with"):
        values["run_options"][name] = [masked(address) for address in values["run_options"][name]]
    return values


def _files(directory: JobDirectory, outputs: Sequence[str]) -> list[ManifestFile]:
    """Return the files on this machine's disks, each once."""
    lines = {directory.result_file(kind): str(kind) for kind in RowStatus}
    output = {local_path(address): "output" for address in outputs if is_local(address)}
    return [_file(kind, path) for path, kind in {**output, **lines}.items() if path.is_file()]


def _file(kind: str, path: Path) -> ManifestFile:
    with map_disk_errors(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ManifestFile(kind=kind, path=str(path.absolute()), bytes=path.stat().st_size, sha256=digest)

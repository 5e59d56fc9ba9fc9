"""A finished job's account of itself: what was asked and by whom, what came of it, what it cost, where it lies."""

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
from inflight.batch.addresses import is_local, local_path
from inflight.batch.errors import writing
from inflight.batch.job import Job, fingerprint
from inflight.batch.job_directory import JobDirectory
from inflight.batch.opening import OpenJob
from inflight.batch.row import Kind
from inflight.batch.secret_address import masked
from inflight.batch.seen.cost import FORMULA, Cost


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True)


class Rows(_Strict):
    """`input` = `ok` + `error` + `dead`; `codes`: errors and dead letters by code."""

    input: int
    ok: int
    error: int
    dead: int
    codes: dict[str, int]


class Times(_Strict):
    """`begun` and `ended` in UTC; `seconds`: for how long the job's lives ran, together."""

    begun: datetime
    ended: datetime
    seconds: float
    lives: int


class Fingerprints(_Strict):
    """What the job is bound to. `binding`: input's and output's options, template and sampling. `model`: the build that
    answered, None where no row was asked.
    """

    input: str
    binding: str
    model: str | None


class File(_Strict):
    """`kind`: ok, error or dead for the job's files of lines; output for what was made of them."""

    kind: str
    path: str
    bytes: int
    sha256: str


class Manifest(_Strict):
    """`manifest.json`. Passwords in addresses are masked, and headers are not in it."""

    name: str
    directory: str
    asked: dict[str, Any]
    rows: Rows
    retries: int
    input_tokens: int
    output_tokens: int
    times: Times
    cost: Cost | None
    cost_formula: str | None
    versions: dict[str, str]
    fingerprints: Fingerprints
    files: tuple[File, ...]
    written: tuple[str, ...]
    notes: tuple[str, ...] = ()
    servers: tuple[str, ...]
    host: str


def make_manifest(job: OpenJob, written: Sequence[str], notes: Sequence[str] = ()) -> Manifest:
    """Of a job whose rows all have their outcome. `written`: the addresses of its output. Raises BatchError."""
    counts, ledger = job.ledger.counts, job.ledger
    cost = Cost.of(counts, job.job.running.price_per_hour)
    return Manifest(
        name=job.directory.path.stem,
        directory=str(job.directory.path.absolute()),
        asked=_asked(job.job),
        rows=Rows(input=counts.done, ok=counts.ok, error=counts.error, dead=counts.dead, codes=dict(counts.codes)),
        retries=counts.retries,
        input_tokens=counts.input_tokens,
        output_tokens=counts.output_tokens,
        times=Times(
            begun=datetime.fromtimestamp(ledger.recall("created"), UTC),
            ended=datetime.now(UTC).replace(microsecond=0),
            seconds=round(counts.seconds, 3),
            lives=counts.lives,
        ),
        cost=cost,
        cost_formula=None if cost is None else FORMULA,
        versions={"inflight": __version__, "python": platform.python_version(), "system": platform.platform()},
        fingerprints=Fingerprints(
            input=ledger.recall("input"), binding=fingerprint(job.job.binding()), model=ledger.recall("build")
        ),
        files=tuple(_files(job.directory, written)),
        written=tuple(str(local_path(one).absolute()) if is_local(one) else masked(one) for one in written),
        notes=tuple(notes),
        servers=() if job.job.running.ephemeral else tuple(masked(one) for one in job.job.running.servers),
        host=socket.gethostname(),
    )


def write_manifest(directory: JobDirectory, manifest: Manifest) -> None:
    """Raises BatchError `disk_full`, `job_failed`."""
    directory.write(directory.manifest, manifest.model_dump_json(indent=2) + "\n")


def _asked(job: Job) -> dict[str, Any]:
    """The job as its job.json has it, without secrets."""
    values = job.model_dump(mode="json")
    for part in ("input", "output"):
        values[part]["address"] = masked(values[part]["address"])
    values["running"]["servers"] = [masked(one) for one in values["running"]["servers"]]
    return values


def _files(directory: JobDirectory, written: Sequence[str]) -> list[File]:
    """Those on this machine's disks, each once."""
    lines = {directory.lines(kind): str(kind) for kind in Kind}
    output = {local_path(address): "output" for address in written if is_local(address)}
    return [_file(kind, path) for path, kind in {**output, **lines}.items() if path.is_file()]


def _file(kind: str, path: Path) -> File:
    with writing(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return File(kind=kind, path=str(path.absolute()), bytes=path.stat().st_size, sha256=digest)

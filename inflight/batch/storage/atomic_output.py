"""Writes files atomically, on a local disk or a storage, and names the files beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import IO

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.storage.addresses import is_local, local_path
from inflight.batch.storage.files import StoredFile
from inflight.batch.storage.secret_address import masked
from inflight.common.atomic_files import install


@contextmanager
def atomic_output(address: str) -> Iterator[IO[bytes]]:
    """Write a file, compressed by its suffix; it replaces the old one when it is complete.

    On a disk it is renamed; object stores show it when its upload is complete. Raises BatchError.
    """
    final = StoredFile(address, missing_code="output_invalid")
    if not is_local(address):
        with final.writing() as file:
            failpoint("output.write")
            yield file
            failpoint("output.upload")
        failpoint("output.uploaded")
        return
    path = local_path(address)
    making = path.with_name(f".making-{path.name}")
    try:
        with StoredFile(str(making), missing_code="output_invalid").writing() as file:
            failpoint("output.write")
            yield file
    except BaseException:
        with suppress(OSError):  # the first error is reported
            making.unlink()
        raise
    with final.map_errors(writing=True):
        install(
            making,
            path,
            before_rename=lambda: failpoint("output.rename"),
            after_rename=lambda: failpoint("output.renamed"),
        )


def check_writable(address: str) -> None:
    """Check that a file can be written there, by writing and removing a small one. Raises BatchError."""
    beside_it = StoredFile(sibling_address(address, "check.tmp"), missing_code="output_invalid")
    try:
        with beside_it.writing() as file:
            file.write(b"Whether a batch job can write here.\n")
    except NotImplementedError as error:
        raise BatchError(f"{masked(address)} is read-only; choose another output", "output_invalid") from error
    try:
        beside_it.remove()
    except BatchError:
        pass  # the user may write but not delete


def sibling_address(address: str, suffix: str) -> str:
    """Return for example `answers.errors.jsonl` for `answers.parquet` or `answers.csv.gz`, and `errors.jsonl`."""
    base = address.removesuffix(PurePosixPath(address).suffix) if StoredFile(address).compression else address
    stem = base.removesuffix(PurePosixPath(base).suffix) if "/" not in PurePosixPath(base).suffix else base
    return f"{stem}.{suffix}"

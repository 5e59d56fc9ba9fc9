"""A file that is there whole or not at all, on a local disk or a storage, and those that lie beside it."""

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
    """Write a file, compressed by its suffix; it takes the place of what was there once all is written.

    On a disk it is renamed into its place; object stores show it when its upload is complete. Raises BatchError.
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
        with suppress(OSError):  # what went wrong is said by the first
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
    """Whether a file could be written there: a small one is, and taken away again. Raises BatchError."""
    beside_it = StoredFile(sibling_address(address, "check.tmp"), missing_code="output_invalid")
    try:
        with beside_it.writing() as file:
            file.write(b"Whether a batch job can write here.\n")
    except NotImplementedError as error:
        raise BatchError(
            f"{masked(address)} can't be written, only read; choose another output", "output_invalid"
        ) from error
    try:
        beside_it.remove()
    except BatchError:
        pass  # somebody may write and not remove


def sibling_address(address: str, suffix: str) -> str:
    """`answers.errors.jsonl` for `answers.parquet` or `answers.csv.gz`, and `errors.jsonl`."""
    base = address.removesuffix(PurePosixPath(address).suffix) if StoredFile(address).compression else address
    stem = base.removesuffix(PurePosixPath(base).suffix) if "/" not in PurePosixPath(base).suffix else base
    return f"{stem}.{suffix}"

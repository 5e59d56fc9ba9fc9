"""What an input or output is in, told by its address."""

from __future__ import annotations

from typing import get_args

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import FileFormat
from inflight.batch.storage.addresses import is_database
from inflight.batch.storage.files import StoredFile
from inflight.batch.storage.secret_address import masked

_BY_SUFFIX: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def resolve_format(address: str, given: FileFormat | None, code: str) -> FileFormat:
    """The format that was said, else what the address tells. Raises BatchError of that code where it tells none."""
    if given is not None:
        return given
    if is_database(address):
        return "sql"
    suffix = StoredFile(address).suffix
    if suffix not in _BY_SUFFIX:
        raise BatchError(
            f"{masked(address)} has no suffix that tells its format; say which of {', '.join(get_args(FileFormat))}"
            " it is in",
            code,
        )
    return _BY_SUFFIX[suffix]

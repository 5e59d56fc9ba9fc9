"""Determines the file format of an input or output from its address."""

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
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")


def resolve_format(address: str, named: FileFormat | None, code: str) -> FileFormat:
    """Return the given format, or the one of the address. Raises BatchError with this code if the address has none."""
    if named is not None:
        return named
    if is_database(address):
        return "sql"
    suffix = StoredFile(address).suffix
    if suffix not in _BY_SUFFIX:
        if suffix in _SPREADSHEETS:
            raise BatchError(f"{masked(address)} is a spreadsheet; export it as CSV, in UTF-8", code)
        raise BatchError(
            f"{masked(address)} has no known suffix; name its format, one of {', '.join(get_args(FileFormat))}",
            code,
        )
    return _BY_SUFFIX[suffix]

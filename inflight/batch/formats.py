"""What an input or output is in, told by its address."""

from __future__ import annotations

from typing import get_args

from inflight.batch.addresses import is_database
from inflight.batch.errors import BatchError
from inflight.batch.files import StoredFile
from inflight.batch.job import Format
from inflight.batch.secret_address import masked

_BY_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def format_of(address: str, said: Format | None, code: str) -> Format:
    """The format that was said, else what the address tells. Raises BatchError of that code where it tells none."""
    if said is not None:
        return said
    if is_database(address):
        return "sql"
    suffix = StoredFile(address).suffix
    if suffix not in _BY_SUFFIX:
        raise BatchError(
            f"{masked(address)} has no suffix that tells its format; say which of {', '.join(get_args(Format))} it is"
            " in",
            code,
        )
    return _BY_SUFFIX[suffix]

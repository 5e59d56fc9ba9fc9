"""Validates the input of a batch before a row is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import InputRecord, InvalidRow, RowStatus
from inflight.batch.job.spec import EncodeSpec, GenerationDefaults
from inflight.batch.row_formats.openai import OpenAIRowFormat
from inflight.batch.sources.jsonl import JsonLinesSource
from inflight.batch.storage.files import StoredFile
from inflight.common.atomic_files import write_atomic

MAX_ERRORS = 100
_NAME = "validation.json"


class RowError(BaseModel):
    """An entry of a batch's `errors`. `line` counts from 1; None for the file."""

    model_config = ConfigDict(frozen=True)
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Validation(BaseModel):
    """The result: the number of requests and their model, or the first errors."""

    model_config = ConfigDict(frozen=True)
    total: int
    model: str | None
    errors: tuple[RowError, ...] = ()


def encode_spec(endpoint: str) -> EncodeSpec | None:
    """Return what a batch for this endpoint does with its rows; None: it generates answers to them."""
    return EncodeSpec(task="embed") if endpoint == "/v1/embeddings" else None


def read_validation(path: Path) -> Validation | None:
    """Return the result in the directory of a batch; None if there is none that can be read."""
    try:
        return Validation.model_validate_json((path / _NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def write_validation(path: Path, validation: Validation) -> None:
    """Store the result in the directory of a batch. Raises OSError."""
    write_atomic(path / _NAME, validation.model_dump_json(), mode=0o600)


def validate_input(path: Path, endpoint: str, models: Collection[str] | None = None) -> Validation:
    """Read the input of a batch: each line must be a request to `endpoint`, with an id of its own, all for one model.

    `models`: the models that there are; None: any. Wrong parameters are no errors of the batch: their rows fail alone.
    """
    rows = _Rows(endpoint, models)
    errors: list[RowError] = []
    try:
        for record in JsonLinesSource(StoredFile(str(path))).read():
            errors.extend(rows.check(record))
            if len(errors) >= MAX_ERRORS:
                break
    except BatchError as error:
        code = "empty_file" if rows.total == 0 and error.code == "input_invalid" else "invalid_file"
        errors.append(RowError(code=code, message=str(error).replace(str(path), "the input file")))
    return Validation(total=rows.total, model=rows.model, errors=tuple(errors[:MAX_ERRORS]))


class _Rows:
    """What the rows so far have in common."""

    def __init__(self, endpoint: str, models: Collection[str] | None) -> None:
        self.total = 0
        self.model: str | None = None
        self._endpoint, self._models = endpoint, models
        self._ids: dict[str, int] = {}
        self._format = OpenAIRowFormat(GenerationDefaults(), 0, encode_spec(endpoint))

    def check(self, record: InputRecord) -> Iterator[RowError]:
        self.total += 1
        row = self._format.parse(self.total - 1, record)
        if isinstance(row, InvalidRow) and row.status is RowStatus.DEAD:
            code = "invalid_json_line" if record.values is None else f"invalid_{row.context}"
            yield RowError(code=code, message=row.message, line=row.line, param=row.context)
            return
        assert record.values is not None
        assert row.id is not None
        if (first := self._ids.setdefault(row.id, record.line)) != record.line:
            message = f"the custom_id is that of line {first}; it must be unique"
            yield RowError(code="duplicate_custom_id", message=message, line=record.line, param="custom_id")
        if record.values["url"] != self._endpoint:
            message = f"the url is {record.values['url']}, but the batch is for {self._endpoint}"
            yield RowError(code="invalid_url", message=message, line=record.line, param="url")
        yield from self._check_model(record.line, record.values["body"].get("model"))

    def _check_model(self, line: int, model: Any) -> Iterator[RowError]:
        code = ""
        if not isinstance(model, str):
            code, message = "missing_required_parameter", "the body has no model; set it to a text"
        elif self.model is None:
            self.model = model
            if self._models is not None and model not in self._models:
                code, message = "model_not_found", f"there is no model {model[:80]!r}; list the models"
        elif model != self.model:
            code, message = "mismatched_model", "the model is not that of the lines before; a batch has one model"
        if code:
            yield RowError(code=code, message=message, line=line, param="model")

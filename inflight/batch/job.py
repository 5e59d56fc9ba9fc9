"""What a job is asked to do, as its options and its `job.json` have it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Form = Literal["openai", "plain"]
Format = Literal["jsonl", "csv", "parquet", "sql"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(_Strict):
    """A part of an input, for one of several jobs over it: its first row's number, how many rows it has (None: all that
    come), and what `Source.read` is given to begin there.
    """

    first: int = 0
    rows: int | None = None
    after: Any = None
    line: int = 0


class InputSpec(_Strict):
    """Where the rows come from. `address`: a path, any address of fsspec's, or a URL of SQLAlchemy's.

    `form` openai: each line is a request of OpenAI's Batch format; plain: each row is a prompt (column `prompt`), a
    conversation (column `messages`), or values for the `template`. None: found out from the address and the first row.
    `id`: the column of the rows' ids; without one a row's number is its id. `keep`: columns to write beside the answer.
    `limit`: the first so many rows alone.
    """

    address: str
    format: Format | None = None
    form: Form | None = None
    table: str | None = None
    query: str | None = None
    id: str | None = None
    prompt: str = "prompt"
    template: str | None = None
    system: str | None = None
    chat: bool = False
    keep: tuple[str, ...] = ()
    limit: int | None = Field(default=None, ge=1)
    part: Part = Part()


class OutputSpec(_Strict):
    """Where the answers go: `address` and `format` as the input's. For tables, `key` finds a row by its id and `column`
    takes the answer; other columns by the names of the record's values (`finish_reason`, `output_tokens`, ...).
    """

    address: str
    format: Format | None = None
    table: str | None = None
    key: str | None = None
    column: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)


class Defaults(_Strict):
    """What rows ask for that do not say otherwise."""

    max_tokens: int = Field(default=128, ge=1)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_end: bool = False


class Running(_Strict):
    """How the rows are run: nothing here changes an answer, so all of it may be another when a job is resumed.

    `concurrency`: the most requests in flight at one server; None: as many as fill it. `tries`: how often a row is
    sent that fails for a reason that may pass; `kills`: how many engines a row may kill. `notice`: seconds to finish
    what is in flight after SIGTERM. `patience`: seconds without any server that answers before the job stops.
    """

    servers: tuple[str, ...] = ("127.0.0.1:8001",)
    model: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, exclude=True)
    ephemeral: str | None = None
    ephemeral_options: dict[str, Any] = Field(default_factory=dict)
    runner: Literal["local", "ray"] = "local"
    workers: int | None = Field(default=None, ge=1)
    concurrency: int | None = Field(default=None, ge=1, le=65536)
    priority: int | None = Field(default=-1, ge=-(2**31), le=2**31 - 1)
    window: int = Field(default=1024, ge=1, le=1_000_000)
    order: Literal["best", "arrival"] = "best"
    row_timeout: float | None = Field(default=900.0, gt=0)
    tries: int = Field(default=20, ge=1)
    kills: int = Field(default=3, ge=1)
    notice: float = Field(default=25.0, ge=0)
    patience: float = Field(default=1800.0, gt=0)
    checkpoint_seconds: float = Field(default=0.5, gt=0, le=600)
    price_per_hour: float | None = Field(default=None, ge=0)


class Job(_Strict):
    """A whole job: `input`, `output` and `defaults` are bound to its state, `running` is not."""

    input: InputSpec
    output: OutputSpec
    defaults: Defaults = Field(default_factory=lambda: Defaults())
    running: Running = Field(default_factory=lambda: Running())

    def binding(self) -> dict[str, Any]:
        """What must be the same when the job is resumed."""
        return {
            "input": self.input.model_dump(mode="json"),
            "output": self.output.model_dump(mode="json"),
            "defaults": self.defaults.model_dump(mode="json"),
        }


def fingerprint(values: Any) -> str:
    """A short name for JSON values: the same for the same values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_local(address: str) -> bool:
    """Whether an address is a path on this machine's disks."""
    return "://" not in address or address.startswith("file://")


def local_path(address: str) -> Path:
    return Path(address.removeprefix("file://"))

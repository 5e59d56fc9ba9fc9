"""What a job is asked to do, as its options and its `job.json` have it."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from inflight.batch.storage.addresses import absolute_address, absolute_path, is_local, local_path
from inflight.batch.storage.secret_address import masked

RowFormatName = Literal["openai", "plain"]
FileFormat = Literal["jsonl", "csv", "parquet", "sql"]


Address = Annotated[str, AfterValidator(absolute_address)]
"""A path, an address of fsspec's, or a database's; the same one from any directory."""


class _StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputPart(_StrictModel):
    """A part of an input, for one of several jobs over it: its first row's number, how many rows it has (None: all that
    come), and what `Source.read` is given to begin there.
    """

    first: int = 0
    rows: int | None = None
    after: Any = None
    line: int = 0


def _field(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default=default, description=description, **bounds)


class InputSpec(_StrictModel):
    """Where the rows come from, and what they mean.

    `form` openai: each line is a request of OpenAI's Batch format; plain: each row is a prompt, a conversation, or
    values for the template. None: found out from the first rows, as the format is from the address.
    """

    address: Address
    format: FileFormat | None = _field(None, "Format of the input.  [default: by the address]")
    row_format: RowFormatName | None = _field(
        None, "Requests of OpenAI's Batch format, or rows of values.  [default: by the first rows]"
    )
    table: str | None = _field(None, "The table to read, where INPUT is a database.")
    query: str | None = _field(None, "A SELECT to read instead of a whole table; it must have the column of --id.")
    id: str | None = _field(None, "The column of the rows' ids.  [default: a table's key; else rows are numbered]")
    prompt: str = _field("prompt", "The column of the prompts; for conversations one with a list of messages.")
    template: str | None = _field(
        None, "The prompt, with columns in it: 'Describe {{ name }}.'; @FILE reads one (Jinja)."
    )
    system: str | None = _field(None, "A system message before each prompt; makes conversations of prompts.")
    chat: bool = _field(False, "Make conversations of the prompts, by the model's chat template.")
    keep: tuple[str, ...] = _field((), "A column to write beside the answer (repeatable).")
    limit: int | None = _field(None, "Read only the first N rows.", ge=1)
    part: InputPart = InputPart()

    @property
    def shown(self) -> str:
        """The address for messages, without secrets."""
        return masked(self.address)


class OutputSpec(_StrictModel):
    """Where the answers go.

    In a table that has rows already, `key` finds a row by its id and `column` takes the answer; `columns` names those
    for other values of a record (`finish_reason`, `output_tokens`, ...).
    """

    address: Address
    format: FileFormat | None = _field(None, "Format of the output.  [default: by the address]")
    table: str | None = _field(None, "The table to write, where --out is a database.  [default: --table]")
    key: str | None = _field(None, "The table's column that has the rows' ids.  [default: --id]")
    column: str | None = _field(
        None, "The column of existing rows that takes the answer.  [default: a new table is made]"
    )
    columns: dict[str, str] = Field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The address for messages, without secrets."""
        return masked(self.address)


class GenerationDefaults(_StrictModel):
    """What rows ask for that do not say otherwise."""

    max_tokens: int = _field(128, "Maximum tokens per answer, for rows that name no number.", ge=1)
    temperature: float | None = _field(None, "Above 0: sample.  [default: greedy]")
    top_k: int | None = _field(None, "Sample among this many likeliest tokens.")
    top_p: float | None = _field(None, "Sample among the likeliest tokens with this probability in total.")
    seed: int | None = _field(None, "Seed of the sampling.")
    repetition_penalty: float | None = _field(None, "Above 1: tokens that came before become less likely.")
    presence_penalty: float | None = _field(None, "-2 to 2, subtracted from the logits of tokens that came before.")
    frequency_penalty: float | None = _field(None, "-2 to 2, subtracted once for each time that a token came before.")
    min_tokens: int | None = _field(None, "Minimum tokens per answer.")
    stop: tuple[str, ...] = _field((), "Text at which the answer ends (repeatable).")
    ignore_eos: bool = _field(False, "Continue past the model's end token, up to --max-tokens.")


class RunOptions(_StrictModel):
    """How the rows are run: nothing here changes an answer, so all of it may be another when a job is resumed."""

    servers: tuple[str, ...] = _field(("127.0.0.1:8001",), "Server: HOST:PORT or a URL (repeatable).")
    model: str | None = _field(None, "Model on the server.  [default: the one that takes text]")
    headers: dict[str, str] = Field(default_factory=dict, exclude=True)
    ephemeral: str | None = _field(None, "Start a server for this engine directory while the job runs, on free ports.")
    ephemeral_options: dict[str, Any] = Field(default_factory=dict)
    runner: Literal["local", "ray"] = _field("local", "Run rows in this process, or on Ray workers.")
    workers: int | None = _field(None, "Number of Ray workers.  [default: one per server]", ge=1)
    concurrency: int | None = _field(
        None, "Maximum concurrent requests per server.  [default: what keeps it busy]", ge=1, le=65536
    )
    priority: int | None = _field(-1, "Request priority; interactive traffic has 0.", ge=-(2**31), le=2**31 - 1)
    window: int = _field(1024, "Rows that are read ahead and reordered.", ge=1, le=1_000_000)
    order: Literal["prefix", "arrival"] = _field("prefix", "Send rows by length and shared prefixes, or as they come.")
    row_timeout: float | None = _field(900.0, "Timeout of a request, in seconds.", gt=0)
    max_attempts: int = _field(20, "Maximum attempts per row, for transient failures.", ge=1)
    max_engine_crashes: int = _field(3, "Engine crashes a row may cause before it becomes a dead letter.", ge=1)
    drain_seconds: float = _field(25.0, "Seconds after SIGTERM, SIGHUP or Ctrl-C to finish requests in flight.", ge=0)
    server_wait_timeout: float = _field(
        1800.0, "Stop the job after this many seconds without a server that answers.", gt=0
    )
    checkpoint_seconds: float = _field(
        0.5, "Seconds between checkpoints; work since the last one is repeated after a crash.", gt=0, le=600
    )
    price_per_hour: float | None = _field(None, "Cost of the machines per hour, for the cost figures.", ge=0)

    @field_validator("ephemeral")
    @classmethod
    def _found_from_anywhere(cls, path: str | None) -> str | None:
        return None if path is None else absolute_path(path)


class Job(_StrictModel):
    """A whole job: `input`, `output` and `defaults` are bound to its state, `run_options` is not."""

    input: InputSpec
    output: OutputSpec
    defaults: GenerationDefaults = Field(default_factory=lambda: GenerationDefaults())
    run_options: RunOptions = Field(default_factory=lambda: RunOptions())

    def binding(self) -> dict[str, Any]:
        """What must be the same when the job is resumed.

        A file that is read may lie elsewhere, on another machine: what is in it is bound, by its fingerprint.
        """
        address = self.input.address
        name = local_path(address).name if is_local(address) else address
        return {
            "input": {**self.input.model_dump(mode="json"), "address": name},
            "output": self.output.model_dump(mode="json"),
            "defaults": self.defaults.model_dump(mode="json"),
        }


def fingerprint(values: Any) -> str:
    """A short name for JSON values: the same for the same values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]

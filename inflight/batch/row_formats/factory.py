"""Creates the row format of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from inflight_client import InflightError
from inflight_client.encoder_call import MODELS

from inflight.batch.errors import BatchError
from inflight.batch.job.file_formats import resolve_format
from inflight.batch.job.rows import REFINED_FIELDS, GenerateRequest, InputRecord, InvalidRow, Row, RowRequest
from inflight.batch.job.spec import TEXT_COLUMNS, FileFormat, InputSpec, Job
from inflight.batch.row_formats.answer_check import Condition
from inflight.batch.row_formats.audio import AudioRowFormat
from inflight.batch.row_formats.detection import first_record, is_request
from inflight.batch.row_formats.interface import RowFormat
from inflight.batch.row_formats.plain import (
    EncodeRowFormat,
    GenerateRowFormat,
    PlainRowFormat,
    sampling_from_defaults,
)
from inflight.batch.row_formats.request_bodies import is_openai_address, sampling_fields
from inflight.batch.row_formats.score import ScoreRowFormat
from inflight.batch.sources.interface import RowSource


def create_row_format(job: Job, source: RowSource, first: InputRecord | None, created: int) -> RowFormat:
    """Return the row format of a job. Raises BatchError (`input_invalid`, `input_not_found`) if the options do not fit.

    `first` is a typical row, if one could be read: it decides the format unless the job does. `created` (seconds since
    1970) is when the job was created, which OpenAI's answers contain.
    """
    spec = job.input
    if spec.id is None and source.key_column is not None:
        spec = spec.model_copy(update={"id": source.key_column})
    compact = has_vector_column(job)
    if spec.row_format == "openai" or (
        spec.row_format is None
        and first is not None
        and is_request(first.values or {})
        and not _plain_options(job, spec)
    ):
        if named := _plain_options(job, job.input):
            raise BatchError(f"rows of OpenAI's format are whole requests; leave out {named}", "input_invalid")
        if source.columns is not None and "body" not in source.columns:
            raise BatchError(
                f"{spec.shown} has no requests of OpenAI's format: requests are JSON lines with custom_id, method,"
                " url and body",
                "input_invalid",
            )
        if job.task not in ("generate", "embed"):
            raise BatchError(f"OpenAI's format has no requests for the task {job.task}", "input_invalid")
        from inflight.batch.row_formats.openai import OpenAIRowFormat

        model = job.run_options.model or MODELS["embed"]
        servers = (*job.run_options.servers, *job.run_options.refine_with)
        passes_through = job.run_options.ephemeral is None and all(map(is_openai_address, servers))
        if passes_through:
            try:
                sampling_fields(sampling_from_defaults(job.defaults))
            except InflightError as error:
                raise BatchError(f"{error}; leave out that option", "input_invalid") from None
        scored = _reads_scores(job)
        return OpenAIRowFormat(job.defaults, created, job.encode, compact, model, passes_through, scored)
    if job.refine is not None and Condition(job.refine.when).asks_schema and job.defaults.answer_schema is None:
        raise BatchError(
            "rows of values have no schema for the condition of --refine-when; give it with --schema, or use another"
            " condition, such as invalid-json",
            "input_invalid",
        )
    if job.defaults.top_log_probs is not None and any(map(is_openai_address, job.run_options.servers)):
        raise BatchError("--top-log-probs needs token ids, which only Triton returns; leave it out", "input_invalid")
    form: PlainRowFormat
    if job.encode is not None and job.task == "transcribe":
        form = AudioRowFormat(spec, job.encode)
    elif job.encode is not None:
        form = (ScoreRowFormat if job.task == "score" else EncodeRowFormat)(spec, job.encode, compact)
    elif job.retrieval is None:
        own = () if job.refine is None else REFINED_FIELDS
        form = GenerateRowFormat(spec, job.defaults, overrides=source.format == "jsonl", own=own)
    else:
        from inflight.batch.row_formats.retrieval import RetrievalRowFormat

        form = RetrievalRowFormat(spec, job.defaults, job.retrieval, overrides=source.format == "jsonl")
    form.keeps_nul = _output_format(job) != "sql"
    there = source.columns  # if all rows have the same ones, no single row is to blame
    if there is not None and (missing := sorted(form.columns(there).difference(there))):
        raise BatchError(
            f"{spec.shown} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(str, there))[:300]}",
            "input_not_found",
        )
    return form


def read_rows(job: Job, source: RowSource) -> Iterator[tuple[InputRecord, Row | InvalidRow]]:
    """Yield the rows of a job, in order, as read and as parsed. Raises BatchError."""
    form = create_row_format(job, source, first_record(source), 0)
    part = job.input.part
    limits = [limit for limit in (job.input.limit, part.rows) if limit is not None]
    records = islice(source.read(part.after, part.line), min(limits) if limits else None)
    for number, record in enumerate(records, part.first):
        yield record, form.parse(number, record)


def sample_request(job: Job) -> RowRequest:
    """Return a request with the job's own options, for servers to say whether they can do it. Raises BatchError."""
    if job.encode is not None:
        return job.encode.sample()
    defaults = job.defaults
    request = GenerateRequest("Hello", defaults.max_tokens, sampling_from_defaults(defaults))
    as_model = defaults.generation_config == "model"
    return replace(
        request,
        as_model=as_model,
        as_chat=not job.input.raw,
        schema=defaults.answer_schema,
        wants_scores=_reads_scores(job),
    )


def _reads_scores(job: Job) -> bool:
    return job.refine is not None and Condition(job.refine.when).reads_scores


def has_vector_column(job: Job) -> bool:
    """Return whether the answers of the task embed go to a column, not to JSON lines. Raises BatchError."""
    return job.compact_vectors or _output_format(job) != "jsonl"


def _output_format(job: Job) -> FileFormat:
    return resolve_format(job.output.address, job.output.format, "output_invalid")


def _plain_options(job: Job, spec: InputSpec) -> str:
    """Return the given options that only plain rows have."""
    options = {
        "the template": spec.template is not None,
        "the system message": spec.system is not None,
        "chat": spec.chat,
        "the column of the prompt": spec.prompt not in ("prompt", TEXT_COLUMNS[job.task]),
        "the column of ids": spec.id not in (None, "custom_id"),
        "the columns to keep": bool(spec.keep),
        "the retrieval": job.retrieval is not None,
        "the schema": job.defaults.answer_schema is not None,
        "--top-log-probs": job.defaults.top_log_probs is not None,
    }
    return ", ".join(name for name, is_set in options.items() if is_set)

"""The options of `inflight batch run`, `resume` and `retry`, and the job that they describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click
from inflight_client import Address, InflightError, Sampling
from inflight_client.address import parse_header
from inflight_client.encoder_call import TRANSLATE_OPTIONS
from pydantic import ValidationError

from inflight.batch.job.spec import (
    PASSAGES,
    SPEECH_FIELDS,
    TEXT_COLUMNS,
    EncodeSpec,
    GenerationDefaults,
    InputSpec,
    Job,
    OutputSpec,
    RefineSpec,
    RetrievalSpec,
    RunOptions,
    Task,
)
from inflight.batch.row_formats.request_bodies import is_openai_address
from inflight.batch.storage.addresses import is_database, is_queue, split_queue
from inflight.batch.storage.secret_address import masked
from inflight.commands.option_sections import section
from inflight.common.schema.cli_options import Lines, collect_options, field_options, model_options, usage_error

_INPUT = {"format": "input_format"}
_OUTPUT = {"format": "output_format", "table": "output_table"}
_RUNNING = {"servers": "server", "retrieve_servers": "retrieve_server"}
_REFINE = {"when": "refine_when"}
_RETRIEVAL = {name: f"retrieve_{name}" for name in RetrievalSpec.model_fields} | {"address": "retrieve"}
_EPHEMERAL = {
    "kv_cache_tokens": "KV cache size in tokens",
    "max_num_sequences": "maximum concurrent requests",
    "max_num_tokens": "maximum tokens per step",
}
_SAMPLING = set(GenerationDefaults.model_fields) & set(Sampling.__dataclass_fields__)


_OUTPUT_OPTIONS = (
    click.option("--out", required=True, metavar="OUTPUT", help="Output: a path, an address or a database URL."),
    model_options(OutputSpec, _OUTPUT),
    click.option(
        "--write",
        type=Lines(),
        metavar="VALUE=COLUMN",
        multiple=True,
        help="Write another value of the answer to a column (repeatable): output_tokens=tokens.",
    ),
)
_TASK_OPTIONS = (
    click.option(
        "--task",
        type=click.Choice(get_args(Task)),
        default="generate",
        show_default=True,
        help="What the model does with a row: generate an answer, embed or classify a text, rerank documents, score how"
        " likely texts are, transcribe an audio file, or translate or summarize a text (text2text).",
    ),
    model_options(EncodeSpec),
)
_GENERATE_OPTIONS = (
    model_options(GenerationDefaults),
    click.option(
        "--schema",
        metavar="FILE",
        help="JSON schema that each answer must match; the properties of its object are columns of the output.",
    ),
    model_options(RefineSpec, _REFINE),
)
_STARTS = {"out": "Output", "retrieve": "Retrieval", "task": "Task", "max_tokens": "Sampling"}
_SOURCE_OPTIONS = model_options(InputSpec, _INPUT), model_options(RetrievalSpec, _RETRIEVAL)


job_options = section(
    *("Input", _SOURCE_OPTIONS[0], *_OUTPUT_OPTIONS, _SOURCE_OPTIONS[1], *_TASK_OPTIONS, *_GENERATE_OPTIONS),
    starts=_STARTS,
)
"""Adds the options that define a job; `job_from_options` reads them."""


_EVALUATED = {"max_length", "truncate", *SPEECH_FIELDS, *TRANSLATE_OPTIONS}
_SCORE_OPTIONS = [option.add_to for option in field_options(EncodeSpec) if option.key in _EVALUATED]
evaluated_job_options = section(
    "Input", *_SOURCE_OPTIONS, *_SCORE_OPTIONS, *_GENERATE_OPTIONS, starts=_STARTS | {"max_length": "Scores"}
)
"""Those of a job whose task and output follow from something else; `evaluated_job` reads them."""


GENERATE_ONLY = (
    *(option.key for model in (GenerationDefaults, RefineSpec) for option in field_options(model, _REFINE)),
    *("schema", "system", "chat", "raw"),
)
"""Options that other tasks do not have."""


running_options = section(
    "Servers",
    model_options(RunOptions, _RUNNING),
    click.option(
        "--header",
        type=Lines(),
        metavar="NAME: VALUE",
        multiple=True,
        help="Header for every request (repeatable); not stored.",
    ),
    *(
        click.option(f"--{name.replace('_', '-')}", type=click.IntRange(1), help=f"For --ephemeral: {help}.")
        for name, help in _EPHEMERAL.items()
    ),
    starts={
        "retrieve_server": "Retrieval",
        "ephemeral": "Servers",
        "runner": "Job",
        "until_empty": "Message queues",
        "price_per_hour": "Reports",
        "header": "Servers",
    },
)
"""Adds the options for running rows; `run_options_from` reads them."""


def job_from_options(address: str, options: dict[str, Any]) -> Job:
    """Return the job that the options describe and remove them from `options`. Invalid values are usage errors."""
    source = collect_options(InputSpec, options, _INPUT)
    task: Task = options.pop("task")
    if task != "generate":
        source.setdefault("prompt", TEXT_COLUMNS[task])
    if (delimiter := source.get("delimiter")) is not None:
        source["delimiter"] = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
        if len(source["delimiter"]) != 1 or source["delimiter"] in '"\r\n':
            raise click.UsageError(f"--delimiter is {delimiter!r}; give one character, or tab")
    if source.get("raw") and (source.get("chat") or "system" in source):
        raise click.UsageError(
            f"--raw and --{'chat' if source.get('chat') else 'system'} exclude each other; leave out one"
        )
    if "template" in source:
        source["template"] = text_or_file(source["template"])
    output = collect_options(OutputSpec, options, _OUTPUT)
    output["columns"] = dict(_pair(pair, "--write") for pair in options.pop("write"))
    if is_database(options["out"]) and not is_database(address) and "table" in source:
        output.setdefault("table", source.pop("table"))
    if "column" in output or output["columns"]:
        in_queue = is_queue(address) and is_database(address)
        output.setdefault("table", split_queue(address)[1] if in_queue else source.get("table"))
        output.setdefault("key", source.get("id"))
    defaults, encode = collect_options(GenerationDefaults, options), collect_options(EncodeSpec, options)
    if task == "text2text":  # options of the same names
        encode |= {name: defaults.pop(name) for name in ("max_tokens", "repetition_penalty") if name in defaults}
    _check_task(task, source, defaults, encode)
    _check_index(options["out"], encode)
    schema, refine = _schema(options.pop("schema"), task), collect_options(RefineSpec, options, _REFINE)
    if schema is not None:
        defaults["answer_schema"] = schema
    retrieval = _retrieval(task, source, options)
    running = run_options_from(options, RunOptions())
    _check_refine(task, refine, running)
    _check_queue(address, source, running)
    if retrieval is not None and running.ephemeral is not None and not running.retrieve_servers:
        raise click.UsageError("a server of --ephemeral has no encoders; name one that has: --retrieve-server")
    try:
        Sampling(**{name: value for name, value in defaults.items() if name in _SAMPLING})
        return Job(
            input=InputSpec(address=address, **source),
            output=OutputSpec(address=options.pop("out"), **output),
            defaults=GenerationDefaults(**{"generation_config": "model", **defaults}),
            encode=None if task == "generate" else EncodeSpec(task=task, **encode),
            retrieval=retrieval,
            refine=RefineSpec(**refine) if refine else None,
            run_options=running,
        )
    except InflightError as error:
        raise click.UsageError(str(error)) from None
    except ValidationError as error:
        raise usage_error(error, {**_INPUT, **_OUTPUT}) from None


def evaluated_job(
    address: str, out: Path, task: Task, options: dict[str, Any], continuations: str | None = None
) -> Job:
    """Return the job that `evaluated_job_options` describe; `continuations`: their column, for the task `score`."""
    outputs = (*field_options(OutputSpec, _OUTPUT), *field_options(EncodeSpec))
    left_out: dict[str, Any] = {option.key: None for option in outputs}
    if task == "score":
        left_out["continuations"] = continuations
    return job_from_options(address, left_out | options | {"out": str(out), "write": (), "task": task})


def _schema(path: str | None, task: Task) -> dict[str, Any] | None:
    """Return the schema in a file. Raises UsageError for what is none."""
    if path is None:
        return None
    if task != "generate":
        raise click.UsageError(f"the task {task} has no --schema; leave it out, or give another --task")
    try:
        schema = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise click.UsageError(f"--schema {path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--schema {path} is not JSON: {error}") from None
    if not isinstance(schema, dict) or not schema:
        raise click.UsageError(f"--schema {path} must be an object, such as {{'type': 'object', 'properties': ...}}")
    from inflight.batch.row_formats.answer_check import check_schema

    try:
        check_schema(schema)
    except InflightError as error:
        raise click.UsageError(f"--schema {path}: {error}") from None
    return schema


def _check_refine(task: Task, refine: dict[str, Any], running: RunOptions) -> None:
    """Refuse a condition that is none, or that has no server, and the reverse."""
    if bool(refine) != bool(running.refine_with):
        missing, given = ("--refine-with", "--refine-when") if refine else ("--refine-when", "--refine-with")
        raise click.UsageError(f"{given} needs {missing}; give both, or leave out both")
    if not refine:
        return
    if task != "generate":
        raise click.UsageError(f"the task {task} has no --refine-when; leave it out, or give another --task")
    from inflight.batch.row_formats.answer_check import Condition

    try:
        Condition(refine["when"])
    except ValueError as error:
        raise click.UsageError(f"--refine-when: {error}") from None


def _check_queue(address: str, source: dict[str, Any], running: RunOptions) -> None:
    """Refuse options that make no sense for a queue, or for another input."""
    if not is_queue(address):
        if running.forever:
            raise click.UsageError(f"--forever needs a message queue, and {masked(address)} is none; leave it out")
        return
    foreign: list[str] = [name for name in ("limit", "table", "query", "delimiter", "format") if name in source]
    foreign += ["runner"] if running.runner != "local" else []
    foreign += ["dead_letters"] if running.dead_letters is not None and is_database(address) else []
    if foreign:
        name = _INPUT.get(foreign[0], foreign[0]).replace("_", "-")
        raise click.UsageError(f"a message queue has no --{name}; leave it out")


_ENCODE_OPTIONS: dict[Task, tuple[str, ...]] = {
    "generate": (),
    "embed": ("input_type", "dimensions", "truncate", "index", "metric"),
    "classify": ("truncate",),
    "rerank": ("truncate", "documents"),
    "score": ("truncate", "continuations", "max_length"),
    "transcribe": (*SPEECH_FIELDS, "max_seconds"),
    "text2text": (*TRANSLATE_OPTIONS, "truncate"),
}


def _check_task(task: Task, source: dict[str, Any], defaults: dict[str, Any], encode: dict[str, Any]) -> None:
    """Refuse options that another task has."""
    foreign = [name for name in encode if name not in _ENCODE_OPTIONS[task]]
    if task != "generate":
        foreign += [*defaults, *(name for name in ("system", "chat", "raw") if name in source)]
    if foreign:
        raise click.UsageError(
            f"the task {task} has no --{foreign[0].replace('_', '-')}; leave it out, or give another --task"
        )


def _check_index(out: str, encode: dict[str, Any]) -> None:
    """Refuse options of an index where there is none."""
    named = [name for name in ("index", "metric") if name in encode]
    if named and not is_database(out):
        raise click.UsageError(f"{out} is a file and has no index; leave out --{named[0]}, or write to PostgreSQL")


def _retrieval(task: Task, source: dict[str, Any], options: dict[str, Any]) -> RetrievalSpec | None:
    """Return the retrieval that the options describe and remove them from `options`. `given`: the input's options."""
    retrieval = collect_options(RetrievalSpec, options, _RETRIEVAL)
    if not retrieval:
        return None
    if missing := [_RETRIEVAL[name] for name in ("address", "table") if name not in retrieval]:
        raise click.UsageError(
            f"retrieval needs --{missing[0].replace('_', '-')} too; --retrieve names the database and --retrieve-table"
            " the table of the passages"
        )
    if task != "generate":
        raise click.UsageError(f"the task {task} has no prompt for passages; leave out --retrieve")
    if not any(PASSAGES in source.get(name, "") for name in ("template", "system")):
        raise click.UsageError(
            "--retrieve needs a place for the passages; write {{ passages }} in --template, or in --system"
        )
    try:
        return RetrievalSpec(**retrieval)
    except ValidationError as error:
        raise usage_error(error, _RETRIEVAL) from None


def run_options_from(options: dict[str, Any], base: RunOptions) -> RunOptions:
    """Return the run options: those given, which are removed from `options`, over those of `base`."""
    running = collect_options(RunOptions, options, _RUNNING)
    try:
        headers = dict(parse_header(header) for header in options.pop("header"))
    except InflightError as error:
        raise click.BadParameter(str(error), param_hint="'--header'") from None
    ephemeral = {name: value for name in _EPHEMERAL if (value := options.pop(name)) is not None}
    if "finish_by" in running and running.get("runner", base.runner) == "ray":
        raise click.UsageError("--finish-by needs --runner local; leave out one of --finish-by and --runner ray")
    if "servers" in running and "ephemeral" in running:
        raise click.UsageError(
            "--ephemeral starts a temporary server and --server names existing ones; give only one of them"
        )
    if "servers" in running:
        running["ephemeral"] = None
    try:
        for address in (*running.get("servers", ()), *running.get("refine_with", ())):
            if is_openai_address(address):
                Address.parse(address).api_key()
    except InflightError as error:
        raise click.UsageError(str(error)) from None
    try:
        return RunOptions.model_validate(
            {
                **base.model_dump(),
                **running,
                "headers": headers or base.headers,
                "ephemeral_options": {**base.ephemeral_options, **ephemeral},
            }
        )
    except ValidationError as error:
        raise usage_error(error, _RUNNING) from None


def text_or_file(text: str, option: str = "--template") -> str:
    """Return the text, or the content of FILE for @FILE."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{text[1:]} cannot be read: {error}", param_hint=f"'{option}'") from None


def _pair(pair: str, option: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"{pair!r} is not of the form VALUE=COLUMN.", param_hint=f"'{option}'")
    return name, value

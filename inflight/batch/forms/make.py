"""The form of a job's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.forms.form import Form
from inflight.batch.job import InputSpec, Job
from inflight.batch.row import Record
from inflight.batch.sources.source import Source

_REQUEST = {"custom_id", "method", "url", "body"}


def make_form(job: Job, source: Source, first: Record | None, created: int) -> Form:
    """What the rows of a job mean. Raises BatchError (`input_invalid`, `input_not_found`) where the options don't fit.

    `first` is a row that is like the others, if one could be read: it tells the form, unless the job does.
    `created` (seconds since 1970) is when the job began, which OpenAI's answers tell.
    """
    spec = job.input
    if spec.id is None and source.key is not None:
        spec = spec.model_copy(update={"id": source.key})
    if spec.form == "openai" or (spec.form is None and _like_request(first) and not _plain_options(spec)):
        if named := _plain_options(spec):
            raise BatchError(f"rows of OpenAI's format are whole requests; leave out {named}", "input_invalid")
        if source.columns is not None and "body" not in source.columns:
            raise BatchError(
                f"{spec.shown} has no requests of OpenAI's format: requests are JSON lines with custom_id, method,"
                " url and body",
                "input_invalid",
            )
        from inflight.batch.forms.openai import OpenAIForm

        return OpenAIForm(job.defaults, created)
    from inflight.batch.forms.plain import PlainForm

    form = PlainForm(spec, job.defaults, overrides=source.format == "jsonl")
    if source.columns is not None:
        _check_columns(form.columns(source.columns), source.columns, spec.shown)
    return form


def is_request(values: Mapping[str, Any]) -> bool:
    """Whether a row means to be a request of OpenAI's format, be there something wrong with it or not."""
    if values.keys() >= _REQUEST:
        return True
    named = ("custom_id" in values or "url" in values) and not ("prompt" in values or "messages" in values)
    return named and isinstance(values.get("body"), Mapping)


def _like_request(first: Record | None) -> bool:
    return first is not None and first.values is not None and is_request(first.values)


def _plain_options(spec: InputSpec) -> str:
    """Options that only plain rows have."""
    options = {
        "the template": spec.template is not None,
        "the system message": spec.system is not None,
        "chat": spec.chat,
        "the column of the prompt": spec.prompt != "prompt",
        "the column of ids": spec.id not in (None, "custom_id"),
        "the columns to keep": bool(spec.keep),
    }
    return ", ".join(name for name, given in options.items() if given)


def _check_columns(needed: set[str], there: list[str], shown: str) -> None:
    """Where all rows have the same columns, one that is missing is no row's fault."""
    if missing := sorted(needed.difference(there)):
        raise BatchError(
            f"{shown} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(str, there))[:300]}",
            "input_not_found",
        )

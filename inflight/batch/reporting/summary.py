"""The summary of a finished job for its user: rows, failures and their reasons, time and cost."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime

from inflight_client.errors import ERROR_CODES

from inflight.batch.reporting.formatting import format_duration, format_money
from inflight.batch.reporting.manifest import JobManifest
from inflight.batch.storage.addresses import is_queue

_RETRYABLE_CODES = ("deadline_exceeded", "cancelled", "row_crashed_engine")
"""Codes that another attempt may resolve, besides those that the error table marks."""

_DONE = {
    "embed": "embedded",
    "classify": "classified",
    "rerank": "reranked",
    "score": "scored",
    "transcribe": "transcribed",
    "text2text": "translated or summarized",
}


def format_summary(manifest: JobManifest) -> str:
    """Return the text of `summary.txt`, which contains nothing of prompts and answers."""
    parts = (
        [f"Batch job {manifest.name}: {_outcome(manifest)}"],
        _request_lines(manifest),
        _rows(manifest),
        _failed(manifest),
        _time(manifest),
        _cost(manifest),
        _results(manifest),
    )
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part))) + "\n"


def _outcome(manifest: JobManifest) -> str:
    failed = manifest.rows.error + manifest.rows.dead
    empty = manifest.rows.empty
    if not failed and empty:
        return f"finished, every row is answered, {empty:,} of {manifest.rows.ok:,} with an empty answer."
    if not failed:
        return "finished, every row is answered."
    return f"finished, {failed:,} of {_count(manifest.rows.input, 'row')} {'has' if failed == 1 else 'have'} no answer."


def _request_lines(manifest: JobManifest) -> Iterator[str]:
    job = manifest.job
    who = (
        ", ".join(server.partition(",")[0] for server in manifest.servers)
        or f"a temporary server for {job['run_options']['ephemeral']}"
    )
    yield "Job"
    yield f"  the rows of {job['input']['address']}"
    if job["input"]["template"]:
        yield "  with the template in manifest.json"
    if job["encode"] is None:
        yield f"  up to {job['defaults']['max_tokens']} tokens per answer, unless a row sets its own limit"
        yield f"  answered by {who}"
    else:
        yield f"  {_DONE[job['encode']['task']]} by {who}"


def _rows(manifest: JobManifest) -> Iterator[str]:
    rows = manifest.rows
    width = len(f"{rows.input:,}")
    yield "Rows"
    for many, what in (
        (rows.input, "in the input"),
        (rows.ok, f"answered ({rows.ok / rows.input:.1%})" if rows.input else "answered"),
        *([(rows.copies, "of the input's rows were copies, with the answer of another row")] if rows.copies else []),
        *([(rows.refined, "of these refined by a larger model")] if rows.refined else []),
        *([(rows.empty, "of these with an empty answer; read a few, and change the prompt")] if rows.empty else []),
        (rows.error, "failed (refused, or gave up after retries)"),
        (rows.dead, "dead letters (invalid rows, or rows that crashed the engine)"),
    ):
        yield f"  {many:>{width},} {what}"


def _failed(manifest: JobManifest) -> Iterator[str]:
    """Yield the reasons from the error table, and what to do."""
    codes, retry = manifest.rows.codes, f"inflight batch retry {shlex.quote(manifest.directory)}"
    if not codes:
        return
    yield "What failed, and what to do"
    for code, many in sorted(codes.items(), key=lambda item: -item[1]):
        entry = ERROR_CODES.get(code)
        why = f": {entry.meaning}" if entry else ""
        yield f"  {_count(many, 'row')}{why} [{code}]"
        if entry:
            yield f"    {entry.remedy}"
    if is_queue(manifest.job["input"]["address"]):
        yield "  To try these again, send the message_body of their records to the queue; in a table, set their status"
        yield "  to NULL. Then start a job with another output."
        return
    retriable = [
        code for code in sorted(codes) if code in _RETRYABLE_CODES or (code in ERROR_CODES and ERROR_CODES[code].retry)
    ]
    if retriable:
        yield "  These may succeed if you send them again:"
        yield f"    {retry}" + "".join(f" --only {code}" for code in retriable)
    if len(retriable) < len(codes):
        yield "  The others would fail again: fix these rows and run them in a new job. If the rows were not the cause,"
        yield f"  fix the cause and run: {retry}"


def _time(manifest: JobManifest) -> Iterator[str]:
    times = manifest.times
    yield "Time"
    yield f"  from {_moment(times.started)} to {_moment(times.ended)}"
    runs = "" if times.runs == 1 else f" in {times.runs} runs"
    if times.finish_by is not None:
        late = (times.ended - times.finish_by).total_seconds()
        what = f"missed by {format_duration(late)}" if late > 0 else "met"
        yield f"  its deadline, {_moment(times.finish_by)}, was {what}"
    yield f"  it ran for {format_duration(times.seconds)}{runs}, on {manifest.host}"
    if manifest.job["encode"] is None:
        tokens = f"{manifest.input_tokens:,} input tokens, {manifest.output_tokens:,} output tokens"
        rated: tuple[float, ...] = (manifest.output_tokens,)
    elif manifest.job["encode"]["task"] == "transcribe":
        tokens = f"{format_duration(manifest.audio_seconds)} of audio"
        rated = (manifest.audio_seconds,)
    else:
        tokens = f"{manifest.texts:,} texts, {manifest.input_tokens:,} tokens"
        rated = (manifest.texts, manifest.input_tokens)
    rate = f" ({', '.join(f'{many / times.seconds:,.0f}' for many in rated)} per second)" if times.seconds else ""
    yield f"  {tokens}{rate}"
    if large := manifest.refine_input_tokens + manifest.refine_output_tokens:
        yield f"  {large:,} of these tokens at the larger model"
    if manifest.retries:
        yield f"  {_count(manifest.retries, 'request')} had to be retried"


def _cost(manifest: JobManifest) -> Iterator[str]:
    cost = manifest.cost
    if cost is None:
        return
    yield "Cost"
    duration = format_duration(manifest.times.seconds)
    parts = []
    if cost.price_per_hour is not None:
        parts.append(f"{format_money(cost.price_per_hour)} per hour for {duration}")
    if cost.for_tokens:
        parts.append(f"{format_money(cost.for_tokens)} for tokens")
    yield f"  {format_money(cost.spent)} in total: {', and '.join(parts) or 'no tokens were paid'}"
    if cost.per_row is not None:
        yield f"  {format_money(cost.per_row)} per answered row"
    if cost.per_million_tokens is not None:
        yield f"  {format_money(cost.per_million_tokens)} per million tokens of prompts and answers"


def _results(manifest: JobManifest) -> Iterator[str]:
    names = {"ok": "answers", "error": "errors", "dead": "dead letters"}
    yield "Where the results are"
    shown = {file.path for file in manifest.files if file.kind in names}
    yield from (f"  output: {address}" for address in manifest.outputs if address not in shown)
    yield from (f"  {names[file.kind]}: {file.path}" for file in manifest.files if file.kind in names and file.bytes)
    yield from (f"  {note}" for note in manifest.notes)


def _count(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _moment(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"

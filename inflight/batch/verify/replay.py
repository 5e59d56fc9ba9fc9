"""Sends some answered rows of a job again, and compares the answers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import orjson
from inflight_client import InflightError

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.connect import connect
from inflight.batch.dispatch.triton_backend import TritonBackend
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import GenerateRequest, Row, RowStatus
from inflight.batch.job.spec import Job, RunOptions
from inflight.batch.outputs.answer_record import is_openai_line, parse_answer, same_content
from inflight.batch.row_formats.detection import first_record
from inflight.batch.row_formats.factory import create_row_format, read_rows, sample_request
from inflight.batch.state.line_file import read_lines
from inflight.batch.verify.checker import original_source, record_key, recorded_state

_CONCURRENCY = 16
_SHOWN = 10
_AROUND = 20


@dataclass(frozen=True)
class Difference:
    """A row whose answer is another one now. `then` and `now`: the texts from where they differ.

    `token`: the place of the first other token, from 0. `gap`: by how much the log probabilities of the two likeliest
    tokens differ there; both None if the server doesn't report them.
    """

    id: str
    then: str
    now: str
    token: int | None = None
    gap: float | None = None

    def __str__(self) -> str:
        where = "" if self.token is None else f" from token {self.token} on"
        gap = "" if self.gap is None else f" (log probabilities {self.gap:.2g} apart)"
        return f"{self.id}{where}{gap}: {self.then[:_AROUND]!r} then, {self.now[:_AROUND]!r} now"


@dataclass(frozen=True)
class ReplayResult:
    """Of `sent` rows, `equal` ones have the same answer again; `failed` has the codes of those without one, by id."""

    sent: int
    equal: int
    differences: tuple[Difference, ...]
    failed: Mapping[str, str]
    build_then: str | None
    build_now: str

    @property
    def same(self) -> bool:
        return self.equal == self.sent

    def messages(self) -> list[str]:
        """Return sentences for people."""
        lines = [f"Sent {self.sent:,} rows again: {self.equal:,} have the same answer."]
        if self.build_then not in (None, self.build_now):
            lines.append(f"Another build answers: {self.build_then} then, {self.build_now} now.")
        lines += [f"Another answer: {each}." for each in self.differences[:_SHOWN]]
        if (more := len(self.differences) - _SHOWN) > 0:
            lines.append(f"{more:,} more have another answer.")
        if self.failed:
            first = ", ".join(f"{id_} [{code}]" for id_, code in [*self.failed.items()][:_SHOWN])
            lines.append(f"{len(self.failed):,} were not answered: {first}.")
        return lines


def share_of(text: str) -> float:
    """Return the number of "1%" or "0.01". Raises ValueError.

    >>> share_of("1%")
    0.01
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is not a share of the rows; write it as 1%, up to 100%.")
    return share


def replay(
    directory: JobDirectory, share: float, options: RunOptions, backends: Sequence[Backend] | None = None
) -> ReplayResult:
    """Send a share of the rows that were answered again; a row is always among them or never, by its id.

    `options`: servers and how to reach them; `backends` answer in their place. Raises BatchError `unsupported_input`
    for a job whose requests depend on more than its rows, `server_unreachable`, and those of the input.
    """
    job = directory.job().model_copy(update={"run_options": options})
    if job.retrieval is not None or (options.ephemeral is not None and backends is None):
        why = "retrieves passages" if job.retrieval is not None else "started its own server; name one with --server"
        raise BatchError(f"the job at {directory.path} can't be replayed: it {why}", "unsupported_input")
    return asyncio.run(_replay(job, directory, share, backends))


async def _replay(job: Job, directory: JobDirectory, share: float, backends: Sequence[Backend] | None) -> ReplayResult:
    state = recorded_state(directory)
    source = original_source(directory, job, state)
    form = create_row_format(job, source, first_record(source), 0)
    answers = _drawn_answers(directory, share)
    rows = [row for _, row in read_rows(job, source) if isinstance(row, Row) and row.id in answers]
    differences: dict[str, Difference] = {}
    failed: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        if backends is None:
            samples = [sample_request(job)]
            backends = [
                connect(each, job.run_options, lambda sentence: None, job.task, samples)
                for each in job.run_options.servers
            ]
            for backend in backends:
                stack.push_async_callback(backend.close)
        try:
            builds = [await backend.build() for backend in backends]
        except InflightError as error:
            raise BatchError(str(error), error.code) from None
        limit = asyncio.Semaphore(_CONCURRENCY * len(backends))

        async def send(place: int, row: Row) -> None:
            backend = backends[place % len(backends)]
            async with limit:
                try:
                    (answer,) = await backend.send([row.request], f"replay-{row.number}")
                    if isinstance(answer, InflightError):
                        raise answer
                    now = form.format_answer(row, answer, 1).text
                    if not _same(answers[row.id], now, job):
                        differences[row.id] = await _difference(backend, row, answers[row.id], now, job)
                except InflightError as error:
                    failed[row.id] = error.code

        async with asyncio.TaskGroup() as group:
            for place, row in enumerate(rows):
                group.create_task(send(place, row))
    ids = [row.id for row in rows]
    equal = len(rows) - len(differences) - len(failed)
    then = state.get("build")
    now = next((build for build in builds if build != then), builds[0])
    in_order = tuple(differences[id_] for id_ in ids if id_ in differences)
    return ReplayResult(len(rows), equal, in_order, failed, then, now)


def _drawn_answers(directory: JobDirectory, share: float) -> dict[str, bytes]:
    """Return the lines of the drawn answers by id, at least one, without those of another model and damaged ones."""
    drawn: dict[str, bytes] = {}
    first = (2**64, "", b"")
    for line in read_lines(directory.result_file(RowStatus.OK)):
        try:
            id_ = str(record_key(RowStatus.OK, line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        number = int.from_bytes(hashlib.sha256(id_.encode()).digest()[:8])
        if orjson.loads(line).get("refined") or number >= max(share * 2**64, first[0]):
            continue
        first = min(first, (number, id_, line))
        if number < share * 2**64:
            drawn[id_] = line
    return drawn or {id_: line for number, id_, line in [first] if line}


def _same(then: bytes, now: bytes, job: Job) -> bool:
    if job.task == "generate":
        return bool(_answer(then) == _answer(now))
    return same_content(parse_answer(then, job.task).content, parse_answer(now, job.task).content, job.task)


def _answer(line: bytes) -> Any:
    """Return what a line has of the answer itself: the texts, and the calls without their ids."""
    values = orjson.loads(line)
    if not is_openai_line(values):
        return values["text"], values["finish_reason"]
    return [
        (
            choice.get("text") or (message := choice.get("message", {})).get("content"),
            [call.get("function") for call in message.get("tool_calls") or ()] if "message" in choice else [],
            choice.get("finish_reason"),
        )
        for choice in values["response"]["body"]["choices"]
    ]


async def _difference(backend: Backend, row: Row, then: bytes, now: bytes, job: Job) -> Difference:
    first, second = (str(parse_answer(line, job.task).content) for line in (then, now))
    texts_differ = first != second
    if not texts_differ:  # what else the answers have: calls, reasons to finish
        first, second = str(_answer(then)), str(_answer(now))
    pairs = enumerate(zip(first, second, strict=False))
    begin = next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))
    token, gap = None, None
    if (
        texts_differ
        and isinstance(backend, TritonBackend)
        and isinstance(row.request, GenerateRequest)
        and row.request.n == 1
    ):
        token, gap = await _first_other_token(backend, row, first)
    return Difference(row.id, first[begin:], second[begin:], token, gap)


async def _first_other_token(backend: TritonBackend, row: Row, text: str) -> tuple[int | None, float | None]:
    """Return the place of the first token that leaves the text, and the gap between the likeliest tokens there."""
    assert isinstance(row.request, GenerateRequest)
    so_far, tokens = "", 0
    async for delta in backend.deltas(row.request, f"replay-{row.number}-tokens"):
        so_far += delta.text
        if not text.startswith(so_far) or delta.finish_reason is not None:
            if not delta.log_probs:
                return tokens, None
            likeliest = sorted(delta.log_probs[0].top.values(), reverse=True)
            return tokens, likeliest[0] - likeliest[1] if len(likeliest) > 1 else None
        tokens += len(delta.token_ids or ())
    return None, None

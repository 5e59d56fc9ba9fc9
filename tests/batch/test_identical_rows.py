"""Identical rows are computed once where that changes no answer, and each has its own record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError
from inflight_client.sampling import Sampling

from inflight.batch.dispatch import identical_rows
from inflight.batch.dispatch.identical_rows import IdenticalRows, request_key
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import EmbedRequest, GenerateRequest, Row, RowRequest
from inflight.batch.job.spec import GenerationDefaults
from inflight.batch.runner import JobRunner
from tests.batch.sample_jobs import job_of, picky
from tests.batch.scripted_backend import ListFeed, ScriptedBackend, answer_of

PROMPTS = ("tea", "milk", "tea", "a long one", "tea", "a long one")


@pytest.mark.parametrize(
    ("defaults", "options", "sent"),
    [
        ({}, {}, 3),
        ({"temperature": 0.7, "seed": 3}, {}, 3),
        ({"temperature": 0.7}, {}, 6),
        ({"generation_config": "model"}, {}, 6),
        ({}, {"dedupe": False}, 6),
    ],
)
def test_copies_are_not_sent(tmp_path: Path, defaults: dict[str, Any], options: dict[str, Any], sent: int) -> None:
    job = job_of(tmp_path, PROMPTS, **options)
    job = job.model_copy(update={"defaults": GenerationDefaults(**defaults)})
    directory, server = JobDirectory.from_output(job.output), ScriptedBackend(picky)
    counts = JobRunner(job, directory, backends=[server]).run().counts
    assert len(server.asked) == sent
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(each["id"], each["text"], each["output_tokens"]) for each in answers] == [
        ("r0", "tea", 1), ("r1", "milk", 1), ("r2", "tea", 1), ("r4", "tea", 1)
    ]  # fmt: skip
    assert counts.codes == {"prompt_too_long": 2}
    copies = 6 - sent
    assert (counts.copies, counts.output_tokens) == (copies, 2 if copies else 4)
    assert ("were copies" in directory.summary.read_text()) == bool(copies)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (GenerateRequest("tea", 4), GenerateRequest("tea", 4), True),
        (GenerateRequest("tea", 4), GenerateRequest("tea", 5), False),
        (GenerateRequest("tea", 4), GenerateRequest("tea", 4, Sampling(stop="x")), False),
        (GenerateRequest("tea", 4, body={"seed": 1, "user": "a"}), GenerateRequest("tea", 4, body={"seed": 1}), True),
        (GenerateRequest("tea", 4, body={"seed": 1}), GenerateRequest("tea", 4, body={"seed": 2}), False),
        (EmbedRequest(("tea",)), EmbedRequest(("tea",), "query"), False),
        (EmbedRequest(("tea",)), EmbedRequest(("tea",)), True),
    ],
)
def test_what_makes_requests_the_same(first: RowRequest, second: RowRequest, same: bool) -> None:
    assert request_key(first) is not None
    assert (request_key(first) == request_key(second)) == same


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest("tea", 4, Sampling(temperature=0.5)),
        GenerateRequest("tea", 4, as_model=True),
        GenerateRequest("tea", 4, body={"temperature": 1}),
        GenerateRequest("tea", 4, body={}),
    ],
)
def test_sampled_rows_without_a_seed_have_no_key(request_: GenerateRequest) -> None:
    assert request_key(request_) is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading pauses while many copies wait, and old answers make room for new ones."""
    monkeypatch.setattr(identical_rows, "MAX_WAITING", 3)
    monkeypatch.setattr(identical_rows, "_MAX_BYTES", 1500)

    async def run() -> None:
        feed = ListFeed(["tea"] * 6 + ["milk", "oats", "milk", "tea"])
        done: list[int] = []
        copies: list[int] = []

        def on_done(row: Row, result: object, attempts: int) -> None:
            done.append(row.number)

        rows = IdenticalRows(feed, on_done, lambda row, result: copies.append(row.number))
        first = await rows.get()
        assert first is not None
        waiting = asyncio.ensure_future(rows.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        rows.on_row_done(first, answer_of(first.request, "tea"), 1)
        assert copies == [1, 2, 3]
        for expected in (6, 7):
            row = await (waiting if expected == 6 else rows.get())
            assert row is not None
            assert row.number == expected
            rows.on_row_done(row, answer_of(row.request, "x"), 1)
        last = await rows.get()  # the answer to its first copies is no longer there
        assert last is not None
        assert (last.number, copies) == (9, [1, 2, 3, 4, 5, 8])
        rows.on_row_done(last, InflightError("no", "overloaded"), 1)
        assert await rows.get() is None
        assert done == [0, 6, 7, 9]

    asyncio.run(run())

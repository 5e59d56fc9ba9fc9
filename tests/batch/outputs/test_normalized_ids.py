"""Ids that a table takes for one key: the first row has it, and later ones become dead letters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.ray.merge import PartMerger
from inflight.batch.ray.parts import PartPlan, StartPoint, split_input
from inflight.batch.runner import JobRunner
from inflight.batch.session import open_session
from inflight.batch.verify.checker import verify
from tests.batch.outputs.answers import plain
from tests.batch.outputs.shop import Shop
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.errors import raises

UUID = "0f7f6d6c-66a3-4c5c-8d5a-0a3f0f6b9c11"
KEYS = {
    "sqlite": {
        "INTEGER": ["7", "007", "+7", "8"],
        "TEXT COLLATE NOCASE": ["tea", "TEA", "Tea", "milk", "é", "É"],
        "TEXT COLLATE RTRIM": ["tea", "tea ", "milk"],
        "TEXT": ["7", "007", "tea", "TEA", "tea "],
    },
    "postgresql": {
        "BIGINT": ["7", "007", "+7", "8"],
        "UUID": [UUID, UUID.upper(), UUID.replace("-", ""), "1" + UUID[1:]],
        "CHAR(9)": ["tea", "tea ", "TEA"],
        "TEXT": ["7", "007", "tea", "TEA", "tea "],
    },
}
KEPT = {
    "INTEGER": ["7", "8"], "BIGINT": ["7", "8"], "UUID": [UUID, "1" + UUID[1:]],
    "TEXT COLLATE NOCASE": ["tea", "milk", "é", "É"], "TEXT COLLATE RTRIM": ["tea", "milk"], "CHAR(9)": ["tea", "TEA"],
}  # fmt: skip


def job_of(folder: Path, shop: Shop, ids: list[str], key: str, *, updates: bool) -> Job:
    """Rows of those ids, whose answers go into a table with that key: into rows that are there, or into new ones."""
    shop.do(f"CREATE TABLE answers (id {key} PRIMARY KEY, text TEXT)")
    if updates:
        shop.do(*(f"INSERT INTO answers (id) VALUES ('{id_}')" for id_ in KEPT.get(key, ids)))
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": id_, "prompt": f"prompt of {id_}"}) + "\n" for id_ in ids))
    output = OutputSpec(address=shop.address, table="answers", key="id", column="text" if updates else None)
    return Job(input=InputSpec(address=str(rows), id="id"), output=output)


def cases() -> list[object]:
    return [pytest.param(kind, key, id=f"{kind} {key}") for kind, keys in KEYS.items() for key in keys]


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize(("shop", "key"), cases(), indirect=["shop"])
def test_no_answer_is_lost_without_a_word(shop: Shop, key: str, updates: bool, tmp_path: Path) -> None:
    ids = KEYS["sqlite" if "sqlite" in shop.address else "postgresql"][key]
    kept = KEPT.get(key, ids)
    described = job_of(tmp_path, shop, ids, key, updates=updates)
    directory = JobDirectory.from_output(described.output, tmp_path / "one.job")
    end = JobRunner(described, directory, backends=[ScriptedBackend()]).run()
    assert end.counts.codes == ({"row_duplicate": len(ids) - len(kept)} if kept != ids else {})
    assert (end.counts.ok, end.exit_code) == (len(kept), 3 if kept != ids else 0)
    assert sorted(str(text) for (text,) in shop.rows("SELECT text FROM answers")) == sorted(
        f"prompt of {n}" for n in kept
    )
    assert verify(directory).complete


def test_parts_of_a_job_are_told_apart_by_the_table_too(lite: Shop, tmp_path: Path) -> None:
    """A part writes lines, and knows of no table."""
    ids = [f"{number % 40:03}" if number % 3 else str(number % 40) for number in range(100)]
    described = job_of(tmp_path, lite, ids, "INTEGER", updates=False)
    directory = JobDirectory.from_output(described.output, tmp_path / "one.job")
    directory.path.mkdir()
    places = PartPlan(directory)
    with open_session(described, directory) as whole:
        plan = split_input(whole.source, StartPoint(0, None, 0), None, workers=1)
        assert len(plan) > 2
        places.write(plan)
        whole.ledger.remember("counts_before_parts", whole.ledger.counts.as_dict())
    directories = []
    for index, part in enumerate(plan):
        directories.append(JobDirectory.from_output(places.job(described, index, part).output))
        JobRunner(places.job(described, index, part), directories[-1], backends=[ScriptedBackend()]).run()
    with open_session(described, directory) as whole:
        PartMerger(whole, plan, directories, whole.ledger.checkpoint).run()
    end = JobRunner(described, directory, backends=[ScriptedBackend()]).run()
    assert (end.counts.ok, end.counts.codes) == (40, {"row_duplicate": 60})
    first = {number % 40: f"prompt of {ids[number]}" for number in reversed(range(100))}
    assert dict(lite.rows("SELECT id, text FROM answers")) == first
    assert verify(directory).complete


@pytest.mark.parametrize("later", ["007", "+7", "B-2"])
def test_ids_that_were_read_before_the_table_was_made_are_refused(shop: Shop, later: str) -> None:
    destination = shop.output(table="answers")
    destination.write_rows([plain(7), plain(8)])
    with raises(BatchError, "output_invalid", naming=repr(later)):
        destination.write_rows([plain(later)])
    assert shop.rows("SELECT id, text FROM answers WHERE id = 7") == [(7, "Answer 7, “quoted”")]

"""The store of batches: what may be created, its states, and what each tenant has access to."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.gateway.batches.store import STATES
from tests.fixtures.errors import raises
from tests.gateway.batches.gateways import ENDPOINT, Stores, lines, request
from tests.gateway.batches.test_files import HOSTILE

HOSTILE_BATCHES = [each.replace("file-", "batch_") if isinstance(each, str) else each for each in HOSTILE]
LEGAL = {
    "validating": {"failed", "in_progress", "cancelling"},
    "in_progress": {"finalizing", "cancelling"},
    "finalizing": {"completed"},
    "cancelling": {"cancelled"},
}
PATHS = {
    "validating": (),
    "in_progress": ("in_progress",),
    "finalizing": ("in_progress", "finalizing"),
    "completed": ("in_progress", "finalizing", "completed"),
    "failed": ("failed",),
    "cancelling": ("in_progress", "cancelling"),
    "cancelled": ("cancelling", "cancelled"),
}


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path / "data")


def batch_in(stores: Stores, status: str) -> str:
    batch_id = stores.batch(lines([request(0)]))
    for each in PATHS[status]:
        assert stores.batches.transition(stores.path(batch_id), each)
    return batch_id


def test_a_new_batch(stores: Stores) -> None:
    file_id = stores.upload(lines([request(0)]))
    metadata = {"a" * 64: "b" * 512, **{str(number): "" for number in range(15)}}
    batch = stores.batches.create("", file_id, ENDPOINT, "24h", metadata)
    assert stores.batches.get("", batch["id"]) == batch
    assert (batch["object"], batch["status"], batch["metadata"]) == ("batch", "validating", metadata)
    assert (batch["input_file_id"], batch["endpoint"], batch["completion_window"]) == (file_id, ENDPOINT, "24h")
    assert batch["expires_at"] - batch["created_at"] in (3600, 3601)
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert {batch[f"{status}_at"] for status in STATES if status != "validating"} == {None}


@pytest.mark.parametrize(
    ("change", "naming"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "48h"}, "completion_window"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"metadata": {"a": "\ud800"}}, "metadata"),
        ({"metadata": ["a"]}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": True}}, "output_expires_after"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after"),
        ({"output_expires_after": 5}, "output_expires_after"),
    ],
)
def test_a_wrong_parameter_is_refused(change: dict[str, Any], naming: str, stores: Stores) -> None:
    given = {"input_file_id": stores.upload(b"{}"), "endpoint": ENDPOINT, "completion_window": "24h"}
    with raises(InflightError, "invalid_parameter", naming=naming):
        stores.batches.create("", **{**given, **change})
    assert list(stores.batches.root.iterdir()) == []


def test_the_input_must_be_a_file_of_the_tenant_with_purpose_batch(stores: Stores) -> None:
    other = stores.files.create("", "rows.jsonl", "user_data", None, [b"{}"])["id"]
    with raises(InflightError, "invalid_parameter", naming=("purpose", other)):
        stores.batches.create("", other, ENDPOINT, "24h")
    for file_id in (stores.upload(b"{}", "a"), *HOSTILE):
        with raises(InflightError, "file_not_found"):
            stores.batches.create("", file_id, ENDPOINT, "24h")  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_id", HOSTILE_BATCHES, ids=lambda value: repr(value)[:20])
def test_an_id_that_is_none_reaches_no_batch(batch_id: str, stores: Stores) -> None:
    stores.batch(b"{}")
    for method in (stores.batches.get, stores.batches.cancel):
        with raises(InflightError, "batch_not_found"):
            method("", batch_id)


def test_a_tenant_has_only_its_own_batches(stores: Stores) -> None:
    ids = {tenant: stores.batch(b"{}", tenant) for tenant in ("", "a", "../a")}
    for tenant in ids:
        assert [each["id"] for each in stores.batches.list(tenant)["data"]] == [ids[tenant]]
        for batch_id in set(ids.values()) - {ids[tenant]}:
            for method in (stores.batches.get, stores.batches.cancel):
                with raises(InflightError, "batch_not_found", naming=batch_id):
                    method(tenant, batch_id)


def test_pages_of_a_list(stores: Stores) -> None:
    ids = [stores.batch(b"{}") for _ in range(4)]
    newest = stores.batches.list("", limit=3)
    assert [each["id"] for each in newest["data"]] == ids[:0:-1]
    assert (newest["first_id"], newest["last_id"], newest["has_more"]) == (ids[3], ids[1], True)
    assert [each["id"] for each in stores.batches.list("", after=ids[1])["data"]] == [ids[0]]
    for wrong in ({"limit": 0}, {"limit": 101}, {"limit": "5"}, {"after": "\0"}):
        with raises(InflightError, "invalid_parameter", naming=next(iter(wrong))):
            stores.batches.list("", **wrong)


@pytest.mark.parametrize("status", PATHS)
def test_only_legal_changes_are_made(status: str, stores: Stores) -> None:
    for wanted in STATES:
        batch_id = batch_in(stores, status)
        before = stores.batches.get("", batch_id)
        legal = wanted in LEGAL.get(status, ())
        assert stores.batches.transition(stores.path(batch_id), wanted, model="tiny") is legal
        after = stores.batches.get("", batch_id)
        assert (after["status"], after["model"]) == ((wanted, "tiny") if legal else (status, None))
        assert legal or after == before


@pytest.mark.parametrize("ending", ["completed", "expired", "failed"])
def test_a_batch_ends_as_its_finalizing_said(ending: Any, stores: Stores) -> None:
    path = stores.path(batch_in(stores, "in_progress"))
    assert stores.batches.transition(path, "finalizing", ending=ending)
    assert [each for each in STATES if stores.batches.transition(path, each)] == [ending]


@pytest.mark.parametrize("status", PATHS)
def test_cancel(status: str, stores: Stores) -> None:
    batch_id = batch_in(stores, status)
    if status in ("validating", "in_progress", "cancelling", "cancelled"):
        wanted = "cancelled" if status == "cancelled" else "cancelling"
        assert [stores.batches.cancel("", batch_id)["status"] for _ in range(2)] == [wanted] * 2
    else:
        with raises(InflightError, "batch_ended", naming=(batch_id, status)):
            stores.batches.cancel("", batch_id)


def test_a_cancel_at_the_same_time_wins_or_loses_as_a_whole(stores: Stores) -> None:
    for _ in range(30):
        batch_id = batch_in(stores, "in_progress")
        path, began = stores.path(batch_id), threading.Barrier(2)
        won: list[str] = []

        def change(status: str, path: Path = path, began: threading.Barrier = began, won: list[str] = won) -> None:
            began.wait()
            if stores.batches.transition(path, status):
                won.append(status)

        threads = [threading.Thread(target=change, args=(status,)) for status in ("cancelling", "finalizing")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        batch = stores.batches.get("", batch_id)
        assert won == [batch["status"]]
        assert (batch["cancelling_at"] is None) != (batch["finalizing_at"] is None)


def test_batches_that_ended_are_removed_when_their_files_have_expired(stores: Stores) -> None:
    old, new, running = batch_in(stores, "cancelled"), batch_in(stores, "cancelled"), batch_in(stores, "in_progress")
    for batch_id in (old, new):
        stores.batches.close(stores.path(batch_id))
    with stores.database.change("the test") as connection:
        connection.execute("UPDATE batches SET changed_at = 0 WHERE id != ?", (new,))
    stores.batches.sweep()
    assert {path.name for path in stores.batches.root.iterdir()} == {new, running}
    assert [batch["id"] for batch in stores.batches.list("")["data"]] == [running, new]


def test_only_batches_with_something_left_to_do_are_open(stores: Stores) -> None:
    ended, waiting = batch_in(stores, "cancelled"), batch_in(stores, "in_progress")
    assert [record.path.name for record in stores.batches.open_batches()] == [ended, waiting]
    stores.batches.close(stores.path(ended))
    assert [record.path.name for record in stores.batches.open_batches()] == [waiting]


def test_what_a_process_that_died_was_about_to_create_is_removed(stores: Stores) -> None:
    kept = stores.batch(b"{}")
    for orphan in (stores.path("batch_" + "0" * 32), stores.files.folder / ("file-" + "0" * 32)):
        orphan.mkdir()
        os.utime(orphan, (0, 0))
    stores.files.sweep()
    stores.batches.sweep()
    assert [path.name for path in stores.batches.root.iterdir()] == [kept]
    assert len(list(stores.files.folder.iterdir())) == 1


def test_batches_of_a_version_without_keys_are_read(tmp_path: Path) -> None:
    stores = Stores(tmp_path / "data")
    batch_id = stores.batch(lines([request(0)]))
    with stores.database.change("the test") as connection:
        connection.execute("ALTER TABLE batches DROP COLUMN key")
    for opened in (Stores(tmp_path / "data"), Stores(tmp_path / "data")):
        assert opened.batches.read(opened.path(batch_id)).key == ""

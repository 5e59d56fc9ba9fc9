"""Batches that really run, on a server that answers as it should."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from inflight.batch.failpoints import VARIABLE
from inflight.batch.job.spec import GenerationDefaults
from inflight.deploy.server.server import Server
from inflight.gateway.batch_routes import BatchRoutes
from inflight.gateway.batches.models import BatchModel
from inflight.gateway.batches.results import publish_results
from inflight.gateway.batches.row_gate import read_share
from inflight.gateway.batches.runner import BatchRunner
from inflight.gateway.batches.validation import validate_input
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.waiting import wait_until
from tests.gateway.batches.gateways import (
    ENDPOINT,
    OPTIONS,
    RunnerProcess,
    Stores,
    check_once_each,
    lines,
    request,
    run_directly,
    running,
    without_created,
)

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path / "data")


def slow_requests(count: int) -> bytes:
    """Requests that keep a server of a few milliseconds a step busy for a while."""
    rows = [request(number) for number in range(count)]
    for row in rows:
        row["body"]["max_tokens"] = 100
    return lines(rows)


def test_a_batch_gives_the_output_of_batch_run(stores: Stores, hurried_server: Server, tmp_path: Path) -> None:
    requests = [request(number) for number in range(40)]
    requests[7]["body"]["stream"] = True  # its row alone fails
    out = run_directly(lines(requests), hurried_server.grpc_address, tmp_path)
    batch_id = stores.batch(lines(requests))
    with running(stores, [hurried_server.grpc_address]):
        batch = stores.wait(batch_id)
        assert (batch["status"], batch["model"]) == ("completed", "tiny")
        check_once_each(stores, batch, 40)
        assert without_created(stores.content(batch["output_file_id"])) == without_created(out.read_bytes())
        assert stores.content(batch["error_file_id"]) == out.with_name("answers.errors.jsonl").read_bytes()
        wait_until(lambda: not (stores.path(batch_id) / "job").exists())
    moments = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
    assert moments == sorted(moments)
    answered = [each["body"] for each in requests if "stream" not in each["body"]]
    assert batch["usage"]["output_tokens"] == sum(body["max_tokens"] for body in answered)
    file = stores.files.get("", batch["output_file_id"])
    assert (file["purpose"], file["expires_at"] > time.time()) == ("batch_output", True)


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": "row-00000"}, "duplicate_custom_id", "custom_id"),
        ({"custom_id": 5}, "invalid_custom_id", "custom_id"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"url": "/v1/chat/completions"}, "invalid_url", "url"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"body": []}, "invalid_body", "body"),
        ({"body": {"prompt": "tea"}}, "missing_required_parameter", "model"),
        ({"body": {"model": "huge", "prompt": "tea"}}, "mismatched_model", "model"),
    ],
)
def test_an_invalid_row_is_found(change: dict[str, object], code: str, param: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines([request(0), request(1), request(2, **change)]))
    (error,) = validate_input(path, ENDPOINT).errors
    assert (error.code, error.line, error.param) == (code, 3, param)


@pytest.mark.parametrize("content", [b"", b"\n \n"], ids=["empty", "blank"])
def test_an_input_without_rows_is_told_without_its_place(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    (error,) = validate_input(path, ENDPOINT).errors
    assert (error.code, error.line) == ("empty_file", None)
    assert str(tmp_path) not in error.message


def test_errors_of_an_input_fail_the_batch_before_a_row_is_sent(stores: Stores) -> None:
    """A hundred of them are listed."""
    torn, other_model = stores.batch(b"{\n" * 500), stores.batch(lines([request(0), request(1)]))
    with running(stores, [NOWHERE], models=lambda endpoint: {"other": BatchModel(())}):
        failed, refused = stores.wait(torn), stores.wait(other_model)
    errors = failed["errors"]["data"]
    assert [(each["code"], each["line"]) for each in errors] == [("invalid_json_line", n) for n in range(1, 101)]
    assert [each["code"] for each in refused["errors"]["data"]] == ["model_not_found"]
    for batch in (failed, refused):
        assert (batch["status"], batch["in_progress_at"]) == ("failed", None)


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_what_was_answered_before_the_end_stays_readable(how: str, tmp_path: Path, hurried_server: Server) -> None:
    stores = Stores(tmp_path / "data")
    batch_id = stores.batch(slow_requests(1000))
    with running(stores, [hurried_server.grpc_address]):
        stores.wait_for_answers(batch_id)
        if how == "cancelled":
            assert stores.batches.cancel("", batch_id)["status"] == "cancelling"
            assert stores.batches.cancel("", batch_id)["status"] in ("cancelling", "cancelled")
        else:
            with stores.database.change("the window") as connection:
                connection.execute("UPDATE batches SET batch = json_set(batch, '$.expires_at', unixepoch())")
        batch = stores.wait(batch_id)
    assert batch["status"] == how
    check_once_each(stores, batch, 1000)
    answers, errors = stores.records(batch)
    assert answers
    assert {each["error"]["code"] for each in errors} == {f"batch_{how}"}
    assert {each["response"] for each in errors} == {None}
    assert batch[f"{how}_at"] >= (batch["cancelling_at"] or batch["finalizing_at"])


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_batch_without_a_server_waits_and_can_be_ended(how: str, tmp_path: Path) -> None:
    stores = Stores(tmp_path / "data", window_seconds=3600.0 if how == "cancelled" else 3.0)
    batch_id = stores.batch(lines([request(0), request(1)]))
    with running(stores, [NOWHERE], run_options=OPTIONS.model_copy(update={"server_wait_timeout": 0.2})) as runner:
        if how == "cancelled":
            stores.wait(batch_id, "in_progress")
            wait_until(lambda: runner._retries, "the first attempt")
            next(iter(runner._retries.values())).at += 3600.0
            stores.batches.cancel("", batch_id)
        batch = stores.wait(batch_id)
    assert (batch["status"], batch["output_file_id"]) == (how, None)
    check_once_each(stores, batch, 2)


def test_a_queued_batch_is_cancelled_although_another_runs(stores: Stores, hurried_server: Server) -> None:
    first = stores.batch(slow_requests(1000))
    with running(stores, [hurried_server.grpc_address], max_running=1):
        stores.wait(first, "in_progress")
        second = stores.batch(lines([request(0)]))
        stores.batches.cancel("", second)
        batch = stores.wait(second)
        assert stores.batches.get("", first)["status"] == "in_progress"
        check_once_each(stores, batch, 1)


def test_a_batch_keeps_its_defaults_when_a_runner_starts_again(stores: Stores, hurried_server: Server) -> None:
    rows = [request(number) for number in range(60)]
    for row in rows:
        del row["body"]["max_tokens"]
    batch_id = stores.batch(lines(rows))
    with running(stores, [hurried_server.grpc_address], defaults=GenerationDefaults(max_tokens=50)) as runner:
        stores.wait_for_answers(batch_id)
        runner.stop(0.0)
        assert stores.batches.get("", batch_id)["status"] == "in_progress"
        runner._defaults = GenerationDefaults(max_tokens=5)
        runner.start()
        batch = stores.wait(batch_id)
    assert (batch["status"], batch["usage"]["output_tokens"]) == ("completed", 60 * 50)


def test_two_runners_run_a_batch_once_and_the_other_takes_over(stores: Stores, hurried_server: Server) -> None:
    with running(stores, [hurried_server.grpc_address]) as first:
        wait_until(lambda: first.active)
        for path in stores.root.rglob("*"):
            os.utime(path, (0, 0))
        stores.batches.sweep()  # removes what dead processes left, and not the lock
        with running(stores, [hurried_server.grpc_address]) as second:
            batch_id = stores.batch(slow_requests(40))
            stores.wait_for_answers(batch_id)
            assert not second.active
            first.stop(0.0)
            check_once_each(stores, stores.wait(batch_id), 40)
            assert second.active


def _kill_many_times(stores: Stores, server: str, batch_id: str, kills: int, longest: float, concurrency: int) -> int:
    """Kill the runner's process, or that of the job, at random moments; return how often before the batch ended."""
    draw = random.Random(kills)
    runner = RunnerProcess(stores, server, concurrency)
    killed = 0
    try:
        stores.wait(batch_id, "in_progress")
        while killed < kills:
            time.sleep(draw.uniform(0.0, longest))
            if stores.batches.get("", batch_id)["status"] not in ("validating", "in_progress", "finalizing"):
                break
            killed += 1
            if draw.random() < 0.4:
                for pid in stores.job_pids():
                    with suppress(ProcessLookupError):
                        if _runs(pid):
                            os.kill(pid, signal.SIGKILL)
            else:
                runner.kill()
                runner = RunnerProcess(stores, server, concurrency)
        stores.wait(batch_id)
    finally:
        runner.kill()
    return killed


@pytest.mark.parametrize(
    ("rows", "kills", "longest", "concurrency"),
    [(200, 2, 1.0, 2), pytest.param(50_000, 20, 6.0, 64, marks=pytest.mark.slow)],
)
def test_a_batch_that_was_killed_many_times_is_whole(
    rows: int, kills: int, longest: float, concurrency: int, stores: Stores, hurried_server: Server, tmp_path: Path
) -> None:
    requests = lines([request(number) for number in range(rows)])
    batch_id = stores.batch(requests)
    out = run_directly(requests, hurried_server.grpc_address, tmp_path)
    assert _kill_many_times(stores, hurried_server.grpc_address, batch_id, kills, longest, concurrency)
    batch = stores.wait(batch_id)
    assert batch["status"] == "completed"
    check_once_each(stores, batch, rows)
    assert without_created(stores.content(batch["output_file_id"])) == without_created(out.read_bytes())


def test_the_job_ends_with_the_runner_that_was_killed(stores: Stores, hurried_server: Server) -> None:
    batch_id = stores.batch(slow_requests(1000))
    runner = RunnerProcess(stores, hurried_server.grpc_address)
    try:
        stores.wait_for_answers(batch_id)
        (pid,) = stores.job_pids()
    finally:
        runner.kill()
    wait_until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return b"job_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def test_a_damaged_job_fails_its_batch_alone(stores: Stores, hurried_server: Server) -> None:
    batch_id = stores.batch(slow_requests(1000))
    with running(stores, [hurried_server.grpc_address]):
        stores.wait_for_answers(batch_id)
    (stores.path(batch_id) / "job" / "state.db").write_bytes(b"no database" * 500)
    (stores.path(batch_id) / "job" / "state.db-wal").unlink(missing_ok=True)
    other = stores.batch(lines([request(0)]))
    with running(stores, [hurried_server.grpc_address]):
        assert stores.wait(other)["status"] == "completed"
        batch = stores.wait(batch_id)
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "job_damaged")
    assert stores.content(batch["output_file_id"])


@pytest.mark.parametrize("point", [pytest.param("lines.synced:1:full", marks=pytest.mark.slow), "commit:2:full"])
def test_a_batch_waits_for_room_on_the_disk(
    point: str, stores: Stores, hurried_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = stores.batch(lines([request(number) for number in range(20)]))
    said: list[str] = []
    monkeypatch.setenv(VARIABLE, point)
    with running(stores, [hurried_server.grpc_address], on_message=said.append):
        wait_until(lambda: said)
        assert stores.batches.get("", batch_id)["status"] == "in_progress"
        monkeypatch.delenv(VARIABLE)
        batch = stores.wait(batch_id)
    assert batch["status"] == "completed"
    check_once_each(stores, batch, 20)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("lines.synced:1:kill", marks=pytest.mark.slow),
        "commit:2:kill",
        pytest.param("summary.txt.rename:1:kill", marks=pytest.mark.slow),
    ],
)
def test_a_cancelled_batch_ends_although_its_closing_is_killed(
    point: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = stores.batch(lines([request(number) for number in range(20)]))
    stores.batches.cancel("", batch_id)
    monkeypatch.setenv(VARIABLE, point)
    with running(stores, [NOWHERE]) as runner:
        wait_until(lambda: runner._retries)
        monkeypatch.delenv(VARIABLE)
        batch = stores.wait(batch_id)
    assert (batch["status"], batch["model"]) == ("cancelled", "tiny")
    check_once_each(stores, batch, 20)


def test_results_that_were_published_before_a_kill_are_the_batch_s(stores: Stores, hurried_server: Server) -> None:
    batch_id = stores.batch(lines([request(0)]))
    with running(stores, [hurried_server.grpc_address]):
        stores.wait_for_answers(batch_id)
    path = stores.path(batch_id)
    stores.batches.transition(path, "in_progress", request_counts={"total": 1, "completed": 0, "failed": 0})
    stores.batches.transition(path, "finalizing")
    published = publish_results(stores.batches.read(path), stores.files)
    with running(stores, [NOWHERE]):
        batch = stores.wait(batch_id)
    assert (batch["status"], batch["output_file_id"]) == ("completed", published["output_file_id"])
    assert [each["purpose"] for each in stores.files.list("")["data"]] == ["batch_output", "batch"]


def test_a_batch_needs_no_input_file_and_nothing_of_the_current_directory(
    stores: Stores, hurried_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for name in ("json", "orjson", "inflight", "pydantic"):
        (place / f"{name}.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(place)
    file_id = stores.upload(lines([request(0)]))
    batch_id = stores.batches.create("", file_id, ENDPOINT, "24h")["id"]
    stores.files.delete("", file_id)
    with running(stores, [hurried_server.grpc_address]):
        assert stores.wait(batch_id)["status"] == "completed"


def test_only_the_owner_can_read(stores: Stores, hurried_server: Server) -> None:
    batch_id = stores.batch(slow_requests(20))
    with running(stores, [hurried_server.grpc_address]):
        stores.wait_for_answers(batch_id)
        for path in (stores.root / "files", *stores.root.rglob("*")):
            with suppress(FileNotFoundError):
                assert not path.stat().st_mode & 0o077, path
        stores.wait(batch_id)


def test_a_runner_without_batches_stops(stores: Stores) -> None:
    runner = BatchRunner(stores.batches, stores.files, [NOWHERE])
    runner.stop()
    with running(stores, [NOWHERE]) as started:
        wait_until(lambda: started.active)
    assert not started.active


def test_a_batch_waits_until_its_model_is_known(stores: Stores, hurried_server: Server) -> None:
    known: dict[str, dict[str, BatchModel] | None] = {"models": None}
    batch_id = stores.batch(lines([request(0), request(1)]))
    with running(stores, [hurried_server.grpc_address], models=lambda endpoint: known["models"]) as runner:
        wait_until(lambda: runner._reported, "the batch to wait")
        assert stores.batches.get("", batch_id)["status"] == "validating"
        known["models"] = {"tiny": BatchModel((hurried_server.grpc_address,))}
        assert stores.wait(batch_id)["status"] == "completed"


def test_a_tenants_first_batch_does_not_wait_for_those_of_others(stores: Stores) -> None:
    """No server answers, so each batch that was started keeps its process."""
    many = [stores.batch(lines([request(0)]), tenant="many") for _ in range(4)]
    few = stores.batch(lines([request(0)]), tenant="few")
    with running(stores, [NOWHERE]) as runner:
        wait_until(lambda: few in {path.name for path in runner._children})
        assert len({path.name for path in list(runner._children)} & set(many)) <= 2
        wait_until(lambda: [read_share(stores.path(each)) for each in (few, *many[:2])] == [0.5, 0.25, 0.25])


def test_first_requests_at_the_same_time_begin_one_runner(tmp_path: Path) -> None:
    settings = GatewaySettings(servers=(NOWHERE,), state_dir=str(tmp_path))
    routes = BatchRoutes(settings, lambda endpoint: None, KeyQuotas(tmp_path / "quotas.sqlite"))
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(routes._open) for _ in range(8)]:
            done.result()
    try:
        assert [thread.name for thread in threading.enumerate()].count("batch-runner") == 1
    finally:
        asyncio.run(routes.close())

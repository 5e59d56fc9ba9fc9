"""Jobs whose rows are messages of a queue, one of each kind."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import time
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.batch import failpoints
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import OutputSpec
from inflight.batch.outputs.sql import TableOutput
from inflight.batch.queues.factory import open_queue
from inflight.batch.queues.source import BATCH, MessageQueue
from inflight.batch.reporting.metrics import JobCollector
from inflight.batch.reporting.progress import JobProgress, JobState
from inflight.batch.runner import JobResult
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.queue_ledger import QueueLedger
from tests.batch.outputs.shop import Shop
from tests.batch.queue_jobs import QueueJob, prompts
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.queues import SampleQueue, SampleTable
from tests.fixtures.waiting import wait_until, wait_until_async


def test_each_message_is_answered_once_and_the_bad_ones_are_dead_letters(queue: SampleQueue, tmp_path: Path) -> None:
    async def picky(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return InflightError("too long", "prompt_too_long") if prompt == "long" else prompt

    queue.send([*prompts(150), {}, [], {"prompt": "long"}])
    job = QueueJob(queue, tmp_path, picky)
    result = job.run()
    assert (result.state, result.counts.ok, result.counts.error, result.counts.dead) == (JobState.FINISHED, 150, 1, 2)
    assert Counter(row["text"] for row in job.records()) == Counter(each["prompt"] for each in prompts(150))
    assert len({row["id"] for row in job.records()}) == 150
    assert len({row["id"] for row in job.records("dead")} - {None}) == 2
    assert queue.left() == 0
    assert queue.dead().count("None") == 2  # beside what other tests have left
    samples = {sample.name: sample.value for sample in _samples(job.progress[-1])}
    assert samples["inflight_batch_queue_age_seconds"] == 0
    failed = [json.loads(row.get("message_body", "null")) for row in (*job.records("errors"), *job.records("dead"))]
    kept = isinstance(queue, SampleTable)
    assert sorted(failed, key=str) == ([None] * 3 if kept else [[], {"prompt": "long"}, {}])
    summary = (job.directory.path / "summary.txt").read_text()
    assert "prompt_too_long" in summary
    assert "batch retry" not in summary


def test_requests_of_openais_format_have_their_own_ids(queue: SampleQueue, tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "tea"}], "max_tokens": 1}
    request = {"custom_id": "mine", "method": "POST", "url": "/v1/chat/completions", "body": body}
    queue.send([request, {**request, "custom_id": "other", "url": "/v1/nothing"}])
    job = QueueJob(queue, tmp_path, row_format="openai")
    assert (job.run().counts.ok, queue.left()) == (1, 0)
    assert [row["custom_id"] for row in job.records()] == ["mine"]
    assert [row["id"] for row in job.records("dead")] == ["other"]


def test_the_age_is_that_of_the_oldest_message_that_is_held(queue: SampleQueue, tmp_path: Path) -> None:
    queue.send(prompts(1, "old"))
    job = QueueJob(queue, tmp_path).job
    with closing(open_queue(job.input, job.run_options)) as holding:
        assert holding.age == 0
        (message,) = next(messages for messages in holding.messages() if messages)
        assert message.sent is not None
        first = holding.age
        time.sleep(0.05)
        assert first is not None
        assert first + 0.05 <= (holding.age or 0) <= time.time() - message.sent
        holding.settle({message.id: RowStatus.OK})
        assert holding.age == 0


def test_jobs_share_a_queue_and_hold_no_more_than_their_window(queue: SampleQueue, tmp_path: Path) -> None:
    queue.send(prompts(40, "shared"))
    jobs: list[QueueJob] = []

    async def together(server: ScriptedBackend, prompt: str) -> str:
        await wait_until_async(lambda: all(job.server.asked for job in jobs))
        return prompt

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        jobs.append(QueueJob(queue, tmp_path / name, together, window=4, lease_seconds=600))
    holding = open_queue(jobs[0].job.input, jobs[0].job.run_options)
    assert [len(messages) for messages in islice(holding.messages(), 2)] == [4, 0]
    holding.close()
    threads = [threading.Thread(target=job.run) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([row for job in jobs for row in job.records()]) == 40
    assert len({row["text"] for job in jobs for row in job.records()}) == 40


def _samples(progress: JobProgress) -> list[Any]:
    collector = JobCollector("job")
    collector.progress = progress
    return [sample for metric in collector.collect() for sample in metric.samples]


def test_a_recorded_message_that_comes_again_is_acknowledged_and_not_answered(
    queue: SampleQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(prompts(5, "again"))
    died = QueueJob(queue, tmp_path)
    monkeypatch.setattr(failpoints, "_ARMED", {"queue.settle": (1, "full")})
    with pytest.raises(OSError, match="space"):
        died.run()
    monkeypatch.undo()
    assert queue.left() == 5
    job = QueueJob(queue, tmp_path)
    assert job.run().counts.ok == 5
    assert (job.server.asked, queue.left()) == ([], 0)
    assert len(job.records()) == 5


def test_a_slow_message_is_not_delivered_twice(queue: SampleQueue, tmp_path: Path) -> None:
    async def slow(server: ScriptedBackend, prompt: str) -> str:
        await asyncio.sleep(5.5)
        return prompt

    queue.send(prompts(1, "slow"))
    job = QueueJob(queue, tmp_path, slow, lease_seconds=4)
    other = QueueJob(queue, tmp_path / "other", lease_seconds=4)
    (tmp_path / "other").mkdir()
    thread = threading.Thread(target=job.run)
    thread.start()
    wait_until(lambda: job.server.asked)
    assert other.run().counts.done == 0
    thread.join()
    assert (len(job.records()), queue.left()) == (1, 0)


def test_a_message_with_which_workers_die_alone_becomes_a_dead_letter(
    queue: SampleQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(prompts(3, "poison"))
    options: dict[str, Any] = {"max_deliveries": 1, "lease_seconds": 2}
    job = QueueJob(queue, tmp_path, **options)
    dying = open_queue(job.job.input, job.job.run_options)
    assert wait_until(lambda: len(dying.receive(64, 0.1)) == 3)
    dying.close()
    monkeypatch.setattr(QueueLedger, "close", Ledger.close)  # as a process does that is killed
    monkeypatch.setattr(failpoints, "_ARMED", {"messages.apart": (1, "full")})
    for _ in range(3):
        failpoints._REACHED.clear()
        with pytest.raises(OSError, match="space"):
            QueueJob(queue, tmp_path, **options).run()
    monkeypatch.undo()
    assert job.run().counts.codes == {"row_crashed_worker": 1}
    assert (len(job.records()), queue.left()) == (2, 0)
    assert sum(prompt.startswith("poison") for prompt in queue.dead()) == 1


def die_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs leave their messages and their state as if their process was killed."""
    monkeypatch.setattr(QueueLedger, "close", Ledger.close)
    monkeypatch.setattr(MessageQueue, "close", lambda self: (self._closing.set(), self.disconnect()))


def test_a_message_that_is_always_alone_is_dead_after_as_many_deaths(
    queue: SampleQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(prompts(1, "lonely"))
    options: dict[str, Any] = {"max_deliveries": 2, "lease_seconds": 1, "until_empty": 1.5}
    with monkeypatch.context() as dying:
        die_at_the_end(dying)
        dying.setattr(failpoints, "_ARMED", {"messages.apart": (1, "full")})
        for _ in range(2):
            failpoints._REACHED.clear()
            with pytest.raises(OSError, match="space"):
                QueueJob(queue, tmp_path, **options).run()
    job = QueueJob(queue, tmp_path, **options)
    assert job.run().counts.codes == {"row_crashed_worker": 1}
    assert (job.server.asked, queue.left()) == ([], 0)


@pytest.mark.parametrize("joined", [True, False], ids=["joined", "given back"])
def test_a_message_that_others_joined_or_that_was_given_back_was_not_alone_at_a_death(
    joined: bool, queue: SampleQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(server: ScriptedBackend, prompt: str) -> str:
        await asyncio.sleep(60)
        return prompt

    queue.send(prompts(1, "first"))
    options: dict[str, Any] = {"max_deliveries": 1, "lease_seconds": 1, "until_empty": 1.5}
    job = QueueJob(queue, tmp_path, stuck, **options | {"until_empty": 60, "drain_seconds": 0})
    with monkeypatch.context() as dying:
        thread = threading.Thread(target=job.run)
        thread.start()
        wait_until(lambda: job.server.asked)
        if joined:
            queue.send(prompts(1, "second"))
            wait_until(lambda: len(job.server.asked) == 2)
            die_at_the_end(dying)
        job.runner.stop()
        thread.join()
    assert QueueJob(queue, tmp_path, **options).run().counts.ok == 1 + joined


def test_a_job_that_stops_gives_back_what_it_has_not_sent(queue: SampleQueue, tmp_path: Path) -> None:
    async def stuck(server: ScriptedBackend, prompt: str) -> str:
        await asyncio.sleep(0.3 if len(server.asked) == 1 else 60)
        return prompt

    queue.send(prompts(20, "back"))
    job = QueueJob(queue, tmp_path, stuck, concurrency=1, lease_seconds=600, drain_seconds=0)
    thread = threading.Thread(target=job.run)
    thread.start()
    wait_until(lambda: len(job.server.asked) == 2)
    job.runner.stop()
    thread.join()
    assert (len(job.records()), queue.left()) == (1, 19)
    (tmp_path / "other").mkdir()
    assert QueueJob(queue, tmp_path / "other", lease_seconds=600).run().counts.ok == 19


def test_an_answer_in_the_queues_own_database_and_its_acknowledgement_are_one_transaction(
    table: SampleTable, database: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = OutputSpec(address=database.address, table="jobs", key="id", column="answer")

    def full_disk(self: TableOutput, connection: Any, answers: Any) -> None:
        write_all(self, connection, answers)
        raise OSError(errno.ENOSPC, "no space")

    def rows() -> set[tuple[Any, ...]]:
        return set(database.rows("SELECT answer, status FROM jobs"))

    write_all = TableOutput._write_all
    table.send(prompts(3))
    with monkeypatch.context() as patch:
        patch.setattr(TableOutput, "_write_all", full_disk)
        assert QueueJob(table, tmp_path, output=output).run().code == "disk_full"
    assert rows() == {(None, None)}
    again = QueueJob(table, tmp_path, output=output)
    assert (again.run().counts.ok, again.server.asked) == (3, [])
    assert rows() == {(f"prompt {number}", "ok") for number in range(3)}


def test_a_job_for_ever_into_a_table_keeps_no_answers_beside_it(
    table: SampleTable, database: Shop, tmp_path: Path
) -> None:
    output = OutputSpec(address=database.address, table="answers")
    job = QueueJob(table, tmp_path, output=output, forever=True, segment_rows=10)
    thread = threading.Thread(target=job.run)
    thread.start()
    table.send([*prompts(30), {}])
    wait_until(lambda: table.left() == 0)
    job.runner.stop()
    thread.join()
    assert database.rows("SELECT count(DISTINCT text), count(*) FROM answers") == [(30, 30)]
    (dead,) = job.directory.path.glob("*.jsonl")
    assert dead.name.startswith("dead.0000")


def test_a_slow_message_does_not_hold_back_those_of_the_next_receive(table: SampleTable, tmp_path: Path) -> None:
    async def last(server: ScriptedBackend, prompt: str) -> str:
        await wait_until_async(lambda: prompt != "prompt 0" or len(server.asked) == 2 * BATCH)
        return prompt

    table.send(prompts(2 * BATCH))
    assert QueueJob(table, tmp_path, last).run().counts.ok == 2 * BATCH


def test_a_job_for_ever_seals_segments_and_forgets(queue: SampleQueue, tmp_path: Path) -> None:
    def stored(job: QueueJob) -> int:
        with closing(QueueLedger(job.directory)) as ledger:
            return int(ledger.database.execute("SELECT count(*) FROM messages").fetchone()[0])

    options: dict[str, Any] = {"forever": True, "segment_rows": 50, "segment_seconds": 0.5, "remember_seconds": 1}
    job = QueueJob(queue, tmp_path, **options)
    ended: list[JobResult] = []
    thread = threading.Thread(target=lambda: ended.append(job.run()))
    thread.start()
    for part in range(3):
        queue.send(prompts(60, f"part {part}"))
        wait_until(lambda: len(job.records()) == 60 * (part + 1))  # noqa: B023
        time.sleep(0.6)
    job.runner.stop()
    thread.join()
    assert (ended[0].state, ended[0].exit_code, queue.left()) == (JobState.STOPPED, 75, 0)
    names = sorted(path.name for path in tmp_path.glob("answers*.jsonl"))
    assert names == [f"answers.{number:06}.jsonl" for number in range(1, len(names) + 1)]
    assert len(names) >= 3
    assert len({row["id"] for row in job.records()}) == 180
    with closing(QueueLedger(job.directory)) as ledger:
        time.sleep(2.1)
        ledger.forget(1)
        ledger.checkpoint()
    assert stored(job) == 0

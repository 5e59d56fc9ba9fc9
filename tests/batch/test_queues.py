"""Jobs whose rows are messages of a queue, one of each kind."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError
from nats.js.api import AckPolicy, DeliverPolicy
from sqlalchemy import text

from inflight.batch import failpoints
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.outputs.database import OutputDatabase
from inflight.batch.outputs.sql import TableOutput
from inflight.batch.queues.factory import open_queue
from inflight.batch.queues.source import BATCH, MessageQueue
from inflight.batch.reporting.metrics import JobCollector
from inflight.batch.reporting.progress import JobProgress, JobState
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.queue_ledger import QueueLedger
from tests.batch.outputs.shop import Shop
from tests.batch.scripted_backend import Behaviour, ScriptedBackend, echo
from tests.fixtures.errors import raises
from tests.fixtures.nats_operator import NatsOperator
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.queues import QUEUES, NatsServer, SampleQueue, SampleSqs, SampleStream, SampleTable, queue_of
from tests.fixtures.waiting import wait_until, wait_until_async

PREPARED = text("SELECT count(*) FROM pg_prepared_statements")


@pytest.fixture(scope="module", params=QUEUES)
def queue(
    request: pytest.FixtureRequest, postgresql: PostgreSql, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SampleQueue]:
    """Each test leaves it empty."""
    with queue_of(request.param, postgresql, tmp_path_factory.mktemp("queue")) as made:
        yield made


class QueueJob:
    """A job of a queue, in a folder, with a server that does what a test says."""

    def __init__(self, queue: SampleQueue, folder: Path, behaviour: Behaviour = echo, **options: Any) -> None:
        settings = {"until_empty": 0.3, "lease_seconds": 10, "checkpoint_seconds": 0.05, "max_attempts": 1} | options
        settings.setdefault("dead_letters", queue.dead_letters)
        output = settings.pop("output", OutputSpec(address=str(folder / "answers.jsonl")))
        how: dict[str, Any] = {name: settings.pop(name, None) for name in ("row_format", "id")}
        source = InputSpec(address=queue.address, **how)
        self.job = Job(input=source, output=output, run_options=RunOptions.model_validate(settings))
        self.directory = JobDirectory.from_output(output, folder / "answers.job")
        self.server, self.progress = ScriptedBackend(behaviour), [JobProgress.now(JobState.WAITING, "", ())]
        self.runner = JobRunner(self.job, self.directory, self.progress.append, backends=[self.server])
        self._folder = folder

    def run(self) -> JobResult:
        return self.runner.run()

    def records(self, kind: str = "") -> list[dict[str, Any]]:
        """Of all segments."""
        paths = [path for path in self._folder.glob("answers*.jsonl") if kind in path.name]
        paths = [path for path in paths if kind or not {"errors", "dead"} & set(path.name.split("."))]
        try:
            return [json.loads(line) for path in sorted(paths) for line in path.read_text().splitlines()]
        except FileNotFoundError:  # a segment was sealed meanwhile
            return self.records(kind)


def prompts(count: int, word: str = "prompt") -> list[dict[str, str]]:
    return [{"prompt": f"{word} {number}"} for number in range(count)]


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


@pytest.mark.parametrize("queue", ["jetstream"], indirect=True)
def test_messages_that_are_given_back_do_not_come_to_the_job_that_gives_them(queue: SampleStream) -> None:
    def opened() -> MessageQueue:
        return open_queue(InputSpec(address=queue.address), RunOptions(lease_seconds=600))

    def receive() -> None:
        with suppress(BatchError):  # its subscription has ended
            stopping.receive(BATCH, 2)

    queue.send(prompts(5))
    stopping = opened()
    assert sum(map(len, islice(stopping.messages(), 1))) == 5
    waiting = threading.Thread(target=receive)
    waiting.start()
    time.sleep(0.3)
    stopping.release(list(stopping._held.values()))
    with closing(opened()) as other:
        came = other.receive(5, 5)
        other.settle_messages([(message, RowStatus.OK) for message in came])
    assert len(came) == 5
    waiting.join()
    stopping.close()


@pytest.fixture
def table(database: Shop) -> SampleTable:
    return SampleTable(database)


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


@pytest.mark.parametrize("queue", ["sqs", "jetstream"], indirect=True)
def test_dead_letters_must_not_come_back(queue: SampleQueue) -> None:
    name = queue.address.rpartition("/")[2]
    with raises(BatchError, "output_invalid", naming=name):
        open_queue(InputSpec(address=queue.address), RunOptions(dead_letters=name))


@pytest.mark.parametrize("queue", ["jetstream"], indirect=True)
def test_a_message_keeps_its_bytes_and_ids_of_headers_and_numbers_differ(queue: SampleStream, tmp_path: Path) -> None:
    queue.send([{"prompt": "first"}])
    number = queue.last()
    for id in (str(number), f"#{number}"):
        queue.publish(b'{"prompt": "second"}', {"Nats-Msg-Id": id})
    queue.publish(b"\xff\x00")
    job = QueueJob(queue, tmp_path)
    assert job.run().counts.ok == 3
    assert {row["id"] for row in job.records()} == {f"#{number}", str(number), f"##{number}"}
    assert [row["message_body_hex"] for row in job.records("dead")] == ["ff00"]


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
def test_dead_letters_of_sqs_have_their_attributes_and_any_length(queue: SampleSqs, tmp_path: Path) -> None:
    pointer = '["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "b", "s3Key": "k"}]'
    bodies = {"x" * 200_000, "y" * 200_000, pointer}
    for body in bodies:
        queue.publish(body, {"sender": {"DataType": "Binary", "BinaryValue": b"\xff"}})
    job = QueueJob(queue, tmp_path)
    assert job.run().counts.dead == 3
    letters = [each for each in queue.letters() if each["Body"] in bodies]
    assert [each["MessageAttributes"]["sender"]["BinaryValue"] for each in letters] == [b"\xff"] * 3
    assert ["S3" in row["message"] for row in job.records("dead") if row["message_body"] == pointer] == [True]


@pytest.mark.parametrize("queue", ["jetstream"], indirect=True)
def test_a_consumer_that_is_there_keeps_its_settings(queue: SampleStream, tmp_path: Path) -> None:
    queue.consumer("mine", description="billing", max_ack_pending=7, max_deliver=5, deliver_policy=DeliverPolicy.NEW)
    queue.send(prompts(20))
    mine = copy(queue)
    mine.address = f"{queue.address}?consumer=mine"
    assert QueueJob(mine, tmp_path).run().counts.ok == 20
    (tmp_path / "inflight").mkdir()
    assert QueueJob(queue, tmp_path / "inflight").run().counts.ok == 20  # each consumer gets all
    kept = queue.consumer("mine")
    assert (kept.description, kept.max_ack_pending, kept.max_deliver, kept.ack_wait) == ("billing", 7, -1, 10)


@pytest.mark.parametrize("queue", ["jetstream"], indirect=True)
@pytest.mark.parametrize(
    "settings", [{"deliver_subject": "there"}, {"ack_policy": AckPolicy.NONE}, {"headers_only": True}]
)
def test_a_consumer_that_loses_messages_is_refused(settings: dict[str, Any], queue: SampleStream) -> None:
    name = next(iter(settings))
    queue.consumer(name, **settings)
    with raises(BatchError, "input_invalid", naming=name):
        open_queue(InputSpec(address=f"{queue.address}?consumer={name}"), RunOptions())


@pytest.mark.parametrize("path", ["", "a.b", "a/b", "JOBS?consumer=a.b", "JOBS?creds=/dev/null"])
def test_an_address_of_no_stream_is_refused(path: str) -> None:
    with raises(BatchError, "input_invalid", naming=path):
        open_queue(InputSpec(address=f"nats://localhost/{path}"), RunOptions())


def test_a_password_of_any_characters_opens_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = "p@ss/w:r d?#%&+"
    login = {"user": "app", "password": password}
    server = NatsServer(tmp_path, f"authorization {json.dumps(login)}", **login)
    try:
        for given, code in ((password, "input_not_found"), ("other", "storage_denied")):
            monkeypatch.setenv("NATS_PASSWORD", given)
            with raises(BatchError, code, naming="${NATS_PASSWORD}"):
                open_queue(InputSpec(address=f"nats://app:${{NATS_PASSWORD}}@{server.address}/JOBS"), RunOptions())
    finally:
        server.kill()


def test_a_credentials_file_opens_a_stream(tmp_path: Path) -> None:
    operator = NatsOperator(tmp_path)
    server = NatsServer(tmp_path, operator.configuration, user_credentials=str(operator.credentials))
    try:
        with raises(BatchError, "input_not_found", naming="JOBS"):
            open_queue(InputSpec(address=f"nats://{server.address}/JOBS?creds={operator.credentials}"), RunOptions())
    finally:
        server.kill()


def test_statements_are_not_prepared_because_a_pooler_may_change_the_session(database: Shop) -> None:
    with closing(OutputDatabase(database.address)) as opened:
        times = [opened.run(lambda connection: connection.execute(PREPARED).scalar()) for _ in range(10)]
    assert set(times) == {0}


def test_the_name_of_a_table_is_as_it_is_or_as_in_sql(table: SampleTable, database: Shop) -> None:
    database.do('CREATE SCHEMA "My"', 'ALTER TABLE jobs RENAME TO "Jobs"', 'ALTER TABLE "Jobs" SET SCHEMA "My"')
    for name in ("My.Jobs", '"My"."Jobs"'):
        address = table.address.replace("queue=jobs", f"queue={name}")
        with closing(open_queue(InputSpec(address=address), RunOptions())) as queue:
            assert queue.backlog() == 0


def test_a_row_whose_json_is_no_unicode_is_a_dead_letter(table: SampleTable, database: Shop, tmp_path: Path) -> None:
    database.do(
        "ALTER TABLE jobs ADD note json", """INSERT INTO jobs(prompt, note) VALUES ('a', '"\\ud800"'), ('b', '1')"""
    )
    job = QueueJob(table, tmp_path)
    assert (job.run().counts.ok, table.left(), table.dead()) == (1, 0, ["a"])
    assert [row["code"] for row in job.records("dead")] == ["row_invalid"]


def test_a_slow_message_does_not_hold_back_those_of_the_next_receive(table: SampleTable, tmp_path: Path) -> None:
    async def last(server: ScriptedBackend, prompt: str) -> str:
        await wait_until_async(lambda: prompt != "prompt 0" or len(server.asked) == 2 * BATCH)
        return prompt

    table.send(prompts(2 * BATCH))
    assert QueueJob(table, tmp_path, last).run().counts.ok == 2 * BATCH


def test_a_queue_is_read_by_any_unique_column(table: SampleTable, database: Shop) -> None:
    database.do("CREATE UNIQUE INDEX ON jobs (custom_id)", "ALTER TABLE jobs ALTER custom_id SET NOT NULL")
    table.send([{"prompt": "tea", "custom_id": "a"}])
    with closing(open_queue(InputSpec(address=table.address, id="custom_id"), RunOptions())) as queue:
        assert [message.id for message in queue.receive(1, 0)] == ["a"]


@pytest.mark.parametrize("id", [None, "custom_id"])
def test_answers_of_openais_format_acknowledge_by_the_queues_own_key(
    id: str | None, table: SampleTable, database: Shop, tmp_path: Path
) -> None:
    database.do("ALTER TABLE jobs ADD UNIQUE (custom_id), ALTER custom_id SET NOT NULL")
    body = {"model": "m", "messages": [{"role": "user", "content": "tea"}], "max_tokens": 1}
    request = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    table.send([{**request, "custom_id": id} for id in ("2", "b")])
    output = OutputSpec(address=database.address, table="answers")
    job = QueueJob(table, tmp_path, output=output, row_format="openai", id=id)
    assert job.run().counts.ok == 2
    assert database.rows("SELECT custom_id, status FROM jobs ORDER BY id") == [("2", "ok"), ("b", "ok")]


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

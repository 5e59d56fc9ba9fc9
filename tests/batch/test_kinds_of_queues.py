"""What one kind of queue has that others have not: its addresses, its names, its dead letters."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing, suppress
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, DeliverPolicy
from sqlalchemy import text

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, OutputSpec, RunOptions
from inflight.batch.outputs.database import OutputDatabase
from inflight.batch.queues.factory import open_queue
from inflight.batch.queues.source import BATCH, MessageQueue
from tests.batch.outputs.shop import Shop
from tests.batch.queue_jobs import QueueJob, prompts
from tests.fixtures.errors import raises
from tests.fixtures.nats_operator import NatsOperator
from tests.fixtures.queues import NatsServer, SampleQueue, SampleSqs, SampleStream, SampleTable

PREPARED = text("SELECT count(*) FROM pg_prepared_statements")


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

"""Addresses and options of queues with which no job can begin."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import InputSpec, RunOptions
from inflight.batch.queues.factory import open_queue
from inflight.commands.batch.run import command
from tests.batch.outputs.shop import Shop
from tests.fixtures.errors import raises


@pytest.mark.parametrize(
    ("address", "code", "named"),
    [
        ("{}&queue=nothing", "input_not_found", "nothing"),
        ("{}&queue=plain", "input_invalid", ("plain", "leased_until")),
        ("{}&queue=keyless", "input_invalid", "keyless"),
        ("{}&queue=unique_or_null", "input_invalid", "'k'"),
        ("{}&queue=partly_unique", "input_invalid", "'k'"),
        ("{}&queue=unique_pairs", "input_invalid", "'k'"),
        ("sqlite:///shop.db?queue=jobs", "input_invalid", "PostgreSQL"),
        ("postgresql://127.0.0.1:1/shop?queue=jobs", "output_failed", "127.0.0.1:1"),
        ("nats://127.0.0.1:1", "input_invalid", "nats://127.0.0.1:1"),
        ("nats://127.0.0.1:1/JOBS?consumers=a", "input_invalid", "consumers"),
        ("nats://me:secret@127.0.0.1:1/JOBS", "storage_unreachable", "JOBS"),
        ("nats://127.0.0.1:1/JOBS?foo", "input_invalid", "foo"),
        ("sqs://jobs", "input_invalid", "region"),
        ("sqs://jobs?regoin=eu-west-1&foo=bar", "input_invalid", ("regoin", "foo")),
        ("http://sqs.local/123456789012/jobs?foo", "input_invalid", "foo"),
    ],
)
def test_a_queue_that_is_none_is_named(
    address: str, code: str, named: str, database: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.batch.outputs.database._RETRY_WAITS", ())
    monkeypatch.setattr("inflight.batch.queues.jetstream._REQUEST_SECONDS", 0.2)
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    columns = "status text, leased_until timestamptz, deliveries integer"
    database.do(
        "CREATE TABLE plain (id serial PRIMARY KEY)",
        f"CREATE TABLE keyless ({columns})",
        f"CREATE TABLE unique_or_null (k text UNIQUE, {columns})",
        f"CREATE TABLE partly_unique (k text NOT NULL, {columns})",
        "CREATE UNIQUE INDEX ON partly_unique (k) WHERE status IS NULL",
        f"CREATE TABLE unique_pairs (k text NOT NULL, {columns}, UNIQUE (k, status))",
    )
    id = "k" if named == "'k'" else None
    with raises(BatchError, code, naming=named) as caught:
        open_queue(InputSpec(address=address.format(database.address), id=id), RunOptions())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "options", "named"),
    [
        ("rows.jsonl", ("--forever",), "--forever"),
        ("sqs://jobs", ("--limit", "5"), "--limit"),
        ("nats://host/JOBS", ("--runner", "ray"), "--runner"),
        ("postgresql://host/shop?queue=jobs", ("--dead-letters", "dead"), "--dead-letters"),
    ],
)
def test_options_that_an_input_lacks_are_wrong_usage(source: str, options: tuple[str, ...], named: str) -> None:
    ended = CliRunner().invoke(command, [source, "--out", "answers.jsonl", *options])
    assert ended.exit_code == 2
    assert named in ended.output

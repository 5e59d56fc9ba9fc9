"""An address leads to the same place from any directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from inflight.batch.job.directory import default_directory
from inflight.batch.job.spec import OutputSpec, RunOptions
from inflight.batch.storage.addresses import absolute_address, is_queue, split_queue


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("rows.jsonl", "{here}/rows.jsonl"),
        ("../rows.jsonl", "{above}/rows.jsonl"),
        ("file://rows.jsonl", "{here}/rows.jsonl"),
        ("file:///data/rows.jsonl", "/data/rows.jsonl"),
        ("folder/", "{here}/folder"),
        (".", "{here}"),
        ("sqlite:///shop.db", "sqlite:///{here}/shop.db"),
        ("sqlite+pysqlite:///../shop.db?timeout=5", "sqlite+pysqlite:///{above}/shop.db?timeout=5"),
        ("sqlite:////data/shop.db", "sqlite:////data/shop.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///${SHOP}/shop.db", "sqlite:///${SHOP}/shop.db"),
        ("${SHOP}", "${SHOP}"),
        ("s3://bucket/rows.jsonl", "s3://bucket/rows.jsonl"),
        ("postgresql://db/shop", "postgresql://db/shop"),
    ],
)
def test_what_lies_here_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, expected: str
) -> None:
    (tmp_path / "a day").mkdir()
    monkeypatch.chdir(tmp_path / "a day")
    absolute = absolute_address(address)
    assert absolute == expected.replace("{here}", str(tmp_path / "a day")).replace("{above}", str(tmp_path))
    monkeypatch.chdir("/")
    assert absolute_address(absolute) == absolute


@pytest.mark.parametrize("address", ["sqlite:///shop.db", "sqlite:///file:shop.db?uri=true"])
def test_a_database_of_sqlites_is_the_same_one_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    (tmp_path / "50% of a day").mkdir()
    monkeypatch.chdir(tmp_path / "50% of a day")
    absolute = absolute_address(address)
    monkeypatch.chdir("/")
    engine = create_engine(absolute)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE products(id INTEGER)"))
    engine.dispose()
    assert (tmp_path / "50% of a day/shop.db").is_file()


def test_a_link_stays_one_and_an_engine_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")
    monkeypatch.chdir(tmp_path)
    assert RunOptions(ephemeral="current").ephemeral == str(tmp_path / "current")


@pytest.mark.parametrize(
    ("address", "table", "name"),
    [
        ("sqlite:///shop.db", "products", "shop-products.job"),
        ("sqlite:////data/day 1/shop.db?timeout=5", None, "shop.job"),
        ("postgresql://me:secret@db:5432/shop", "answers", "db-5432-shop-answers.job"),
        ("postgresql://me:hun?ter2@db/shop", "answers", "db-shop-answers.job"),
        ("s3://bucket/day/answers.csv", None, "bucket-day-answers.job"),
    ],
)
def test_the_job_of_an_output_that_is_no_file_here_is_named_after_it(
    address: str, table: str | None, name: str
) -> None:
    assert default_directory(OutputSpec(address=address, table=table)) == Path(name)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://a:p&w@db/shop?queue=jobs", ("postgresql://a:p&w@db/shop", "jobs")),
        ("postgresql://db/shop?queue=my%20jobs&sslmode=require", ("postgresql://db/shop?sslmode=require", "my jobs")),
        ("${SHOP}&queue=public.jobs", ("${SHOP}", "public.jobs")),
        ("sqs://jobs", None),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/jobs.fifo", None),
        ("http://127.0.0.1:5000/123456789012/jobs?region=eu-west-1", None),
        ("nats://me:pw@broker:4222/JOBS?subject=jobs.*", None),
    ],
)
def test_the_address_of_a_queue_is_known(address: str, expected: tuple[str, str] | None) -> None:
    assert is_queue(address)
    assert expected is None or split_queue(address) == expected


@pytest.mark.parametrize("address", ["rows.jsonl?queue=jobs", "https://host/rows.jsonl", "postgresql://db/shop"])
def test_other_addresses_are_no_queues(address: str) -> None:
    assert not is_queue(address)

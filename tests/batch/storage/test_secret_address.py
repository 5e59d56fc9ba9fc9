"""Secrets in addresses: put in when the address is used, and never shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.row_formats.factory import create_row_format
from inflight.batch.row_formats.interface import RowFormat
from inflight.batch.sources.factory import open_source
from inflight.batch.storage.secret_address import expand_variables, masked, password_warning
from tests.fixtures.errors import raises


def test_a_variable_is_put_in_as_the_address_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "p@ss/word")
    monkeypatch.setenv("SHOP_HOST", "db.example")
    address = "postgresql://me:${SHOP_PASSWORD}@${SHOP_HOST}:5432/shop"
    assert expand_variables(address, "output_failed") == "postgresql://me:p%40ss%2Fword@db.example:5432/shop"
    monkeypatch.setenv("SHOP", "postgresql://me:x@db/shop")
    assert expand_variables("${SHOP}", "output_failed") == "postgresql://me:x@db/shop"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:p@ss@db/shop", "postgresql://me:***@db/shop"),
        ("postgresql://app:s3cr/et@db/shop", "postgresql://app:***@db/shop"),
        ("postgresql://app:s3cr?et@db/shop", "postgresql://app:***@db/shop"),
        ("postgresql://app:s3cr#et@db/shop?a=b@c", "postgresql://app:***@db/shop?a=b@c"),
        ("postgresql://app:s3@c/r@db/shop", "postgresql://app:***@db/shop"),
        ("https://me:p/w@store/rows.jsonl", "https://me:***@store/rows.jsonl"),
        ("s3://key:sec@bucket/a", "s3://key:***@bucket/a"),
        ("postgresql://db/shop?user=me&password=pass", "postgresql://db/shop?user=me&password=***"),
        ("postgresql://db/shop?password=a#b&user=me", "postgresql://db/shop?password=***&user=me"),
        ("mssql://db/shop?odbc_connect=Driver%3Dx%3BPWD%3Dhunter2", "mssql://db/shop?odbc_connect=***"),
        ("https://store/rows.jsonl?sv=1&sig=abc%2F", "https://store/rows.jsonl?sv=1&sig=***"),
        ("https://store/rows.jsonl?X-Amz-Credential=abc", "https://store/rows.jsonl?X-Amz-Credential=***"),
        (
            "https://store/rows.jsonl?PWD=x&auth=y&access_token=z",
            "https://store/rows.jsonl?PWD=***&auth=***&access_token=***",
        ),
        ("nats://s3cr%2Fet@broker/JOBS", "nats://***@broker/JOBS"),
        ("https://store/rows.jsonl?X-Amz-Security-Token=abc", "https://store/rows.jsonl?X-Amz-Security-Token=***"),
    ],
)
def test_a_typed_password_is_hidden_and_told(address: str, shown: str) -> None:
    assert masked(address) == shown
    assert shown in (password_warning(address) or "")


@pytest.mark.parametrize(
    "address",
    [
        *("postgresql://me:${P}@db/shop", "postgresql://me@db/shop", "postgresql://me:@/x", "s3://a/b@c:d", "x.csv"),
        *("s3://https://store:9000/bucket/a@b.jsonl", "https://store:8080/a@b", "https://store/a?design=1&author=me"),
        *("postgresql://db:5432/shop?user=me", "nats://${TOKEN}@broker/JOBS", "tls://broker/JOBS?creds=a@b"),
    ],
)
def test_what_is_no_secret_is_shown(address: str) -> None:
    assert masked(address) == address
    assert password_warning(address) is None


def test_what_is_said_of_an_input_hides_its_password(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,prompt\n1,tea\n")
    source = open_source(InputSpec(address=str(tmp_path / "rows.csv")))
    address = "https://me:hunter2@store/rows.csv"

    def form(**options: Any) -> RowFormat:
        spec = InputSpec(address=address, **options)
        return create_row_format(Job(input=spec, output=OutputSpec(address="answers.jsonl")), source, None, 0)

    for refused, code in (
        (partial(open_source, InputSpec(address=address, table="rows")), "input_invalid"),
        (partial(form, prompt="nosuch"), "input_not_found"),
        (partial(form, row_format="openai"), "input_invalid"),
    ):
        with raises(BatchError, code, naming="https://me:***@store/rows.csv"):
            refused()


@pytest.mark.parametrize("address", ["s3://shop/out.parquet?sig=hunter2", "postgresql://me:hunter2@db"])
def test_a_directory_of_another_job_is_refused_without_the_password(address: str, tmp_path: Path) -> None:
    other = JobDirectory.from_output(OutputSpec(address=str(tmp_path / "answers.jsonl")), tmp_path / "shop.job")
    with other.locked():
        other.write_job(Job(input=InputSpec(address="in.jsonl"), output=other.output))
    with (
        pytest.raises(BatchError) as refused,
        JobDirectory.from_output(OutputSpec(address=address), other.path).locked(),
    ):
        pass
    assert refused.value.code == "job_mismatch"
    assert "hunter2" not in str(refused.value)

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.publish.s3_address import S3Address, is_s3, parse_location
from tests.fixtures.errors import raises


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)


@pytest.mark.parametrize(
    ("text", "bucket", "prefix", "endpoint"),
    [
        ("s3://models", "models", "", None),
        ("s3://models/a/b", "models", "a/b", None),
        ("S3://models/a/b", "models", "a/b", None),
        ("s3://models//a///b/", "models", "a/b", None),
        ("s3://127.0.0.1:9000/models/a", "models", "a", "http://127.0.0.1:9000"),
        ("s3://http://127.0.0.1:9000/models/a", "models", "a", "http://127.0.0.1:9000"),
        ("s3://https://store.example:443/models/a.b/v_1-2", "models", "a.b/v_1-2", "https://store.example:443"),
    ],
)
def test_every_form_that_triton_has_is_read(text: str, bucket: str, prefix: str, endpoint: str | None) -> None:
    address = S3Address.parse(text)
    assert (address.bucket, address.prefix, address.endpoint) == (bucket, prefix, endpoint)
    assert S3Address.parse(str(address)) == address
    assert is_s3(str(address))


@pytest.mark.parametrize(
    ("variables", "endpoint_url", "written"),
    [
        ({"AWS_ENDPOINT_URL": "http://a:9000"}, None, "s3://http://a:9000/models/x"),
        (
            {"AWS_ENDPOINT_URL": "http://a:9000", "AWS_ENDPOINT_URL_S3": "https://b"},
            None,
            "s3://https://b:443/models/x",
        ),
        ({"AWS_ENDPOINT_URL": "http://a:9000"}, "http://c/", "s3://http://c:80/models/x"),
        ({}, None, "s3://models/x"),
    ],
)
def test_an_endpoint_that_boto3_takes_from_elsewhere_is_written_as_triton_takes_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], endpoint_url: str | None, written: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(S3Address.parse("s3://models/x", endpoint_url)) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://", "''"),
        ("s3://UPPER/a", "'UPPER'"),
        ("s3://http://host/models/a", "port"),
        ("s3://models/a b", "'a b'"),
        ("s3://models/größe", "'größe'"),
    ],
)
def test_what_is_no_address_is_refused_in_one_sentence(text: str, message: str) -> None:
    with raises(DeployError, "invalid_parameter", naming=message):
        S3Address.parse(text)


@pytest.mark.parametrize("endpoint", ["host:9000", "ftp://host", "http://host:port", "http://host:9000/models"])
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with raises(DeployError, "invalid_parameter", naming="http://host:port"):
        S3Address.parse("s3://models/a", endpoint)


def test_a_place_is_a_directory_or_an_address() -> None:
    assert parse_location("models/a") == parse_location(Path("models/a")) == Path("models/a")
    assert parse_location("S3://models/a") == S3Address("models", "a")


@pytest.mark.parametrize(
    ("text", "endpoint", "message"),
    [
        ("s3:/models/a", None, "'s3:/models/a'"),
        ("gs://models/a", None, "'gs://models/a'"),
        ("a\udcff", None, "'a\ufffd'"),
        ("models/a", "http://a:9000", ("--endpoint-url http://a:9000", "models/a")),
        ("s3://http://b:9000/models/a", "http://a:9000", ("s3://http://b:9000/models/a", "--endpoint-url")),
    ],
)
def test_what_is_neither_is_refused(text: str, endpoint: str | None, message: str | tuple[str, ...]) -> None:
    with raises(DeployError, "invalid_parameter", naming=message):
        parse_location(text, endpoint)

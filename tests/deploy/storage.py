"""An S3 that runs here: moto's server, which speaks the API over HTTP, and what a test may do to it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Storage:
    """A server with one bucket, and its owner's client. All servers of a process hold the same, so its name differs."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client: S3Client = boto3.client("s3", endpoint_url=endpoint)
        self.bucket = f"models-{secrets.token_hex(4)}"
        self.client.create_bucket(Bucket=self.bucket)

    def address(self, prefix: str) -> str:
        return f"s3://{self.endpoint}/{self.bucket}/{prefix}"

    def names(self, prefix: str) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{prefix}/")
        return {found["Key"].removeprefix(f"{prefix}/") for page in pages for found in page.get("Contents", [])}


@contextmanager
def storage_server() -> Iterator[Storage]:
    """Credentials are in the environment as long as it runs, as an operator gives them."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("ACCESS_KEY_ID", "tester"),
            ("SECRET_ACCESS_KEY", "secret"),
            ("DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(f"AWS_{name}", value)
        host, port = server.get_host_and_port()
        try:
            yield Storage(f"http://{host}:{port}")
        finally:
            server.stop()

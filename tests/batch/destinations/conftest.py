"""A storage for outputs: S3's API on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.storage import Storage, storage_server


@pytest.fixture(scope="session")
def storage() -> Iterator[Storage]:
    with storage_server() as one:
        yield one

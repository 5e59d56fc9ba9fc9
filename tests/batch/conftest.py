"""What tests of batch jobs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.support.encoder_server import EncoderServer, encoder_server


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncoderServer]:
    """A real Triton whose vectors and scores depend on the texts only, so that those of two jobs are equal."""
    with encoder_server(tmp_path_factory.mktemp("encoders")) as server:
        yield server

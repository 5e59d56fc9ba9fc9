"""Errors of the servers behind the gateway, as applications get them."""

from __future__ import annotations

import pytest
from inflight_client import InflightError

from inflight.openai_api.errors import ApiError


@pytest.mark.parametrize("code", ["server_gone", "answer_damaged", "unsupported_deployment"])
def test_an_address_of_a_server_is_not_for_applications(code: str) -> None:
    told = ApiError.from_error(InflightError("the server at 10.0.0.7:8001 failed", code))
    assert "10.0.0.7" not in str(told)
    assert told.code == code

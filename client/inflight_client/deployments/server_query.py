"""What the detection of a deployment asks the server."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from inflight_client.errors import InflightError

REFUSAL_CODES = (
    "permission_denied",
    "invalid_request",
    "model_not_found",
    "unsupported_input",
    "unsupported_deployment",
)
"""Errors of servers that restrict or lack the configuration or index calls."""


class ServerQuery(NamedTuple):
    """A query to the server: a method of Transport, and the model it concerns."""

    method: str
    argument: str = ""


def ask(method: str, argument: str = "") -> Generator[ServerQuery, Any, Any]:
    """Return the answer to a query, None if the server refuses it. Raises other errors."""
    try:
        return (yield ServerQuery(method, argument))
    except InflightError as error:
        if error.code not in REFUSAL_CODES:
            raise
        return None

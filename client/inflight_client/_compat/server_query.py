"""What the detection of a deployment asks the server."""

from __future__ import annotations

from typing import NamedTuple

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

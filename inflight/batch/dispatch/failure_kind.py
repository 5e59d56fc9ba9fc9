"""The kinds of failures of a row, which decide what happens to the row and to the server."""

from __future__ import annotations

from enum import Enum

from inflight_client import InflightError


class FailureKind(Enum):
    """Why a row got no answer."""

    OVERLOADED = "overloaded"
    """The server is full: send the row later, and fewer rows at a time."""
    UNAVAILABLE = "unavailable"
    """The server cannot answer at the moment."""
    UNREACHABLE = "unreachable"
    """No connection was made."""
    CRASHED = "crashed"
    """The server or its engine ended with the row in flight."""
    REJECTED = "rejected"
    """The server takes no row of this job, now or later."""
    TRANSIENT = "transient"
    """The row failed, and may succeed the next time."""
    PERMANENT = "permanent"
    """The row would fail again."""
    AMBIGUOUS = "ambiguous"
    """The row may be at fault, or the server refuses every request: its error has no known code, or says neither."""


_BY_CODE = {
    "overloaded": FailureKind.OVERLOADED,
    "engine_restarting": FailureKind.UNAVAILABLE,
    "model_not_ready": FailureKind.UNAVAILABLE,
    "server_unreachable": FailureKind.UNREACHABLE,
    "connection_closed": FailureKind.UNREACHABLE,
    "host_not_found": FailureKind.UNREACHABLE,
    "engine_died": FailureKind.CRASHED,
    "server_gone": FailureKind.CRASHED,
    "permission_denied": FailureKind.REJECTED,
    "model_not_found": FailureKind.REJECTED,
    "unsupported_deployment": FailureKind.REJECTED,
    "deadline_exceeded": FailureKind.TRANSIENT,
    "answer_damaged": FailureKind.TRANSIENT,
    "answer_invalid": FailureKind.TRANSIENT,
    "invalid_request": FailureKind.AMBIGUOUS,
    "model_failed": FailureKind.AMBIGUOUS,
    "cancelled": FailureKind.TRANSIENT,  # cancelled on the server by another client
}


def classify_failure(error: InflightError) -> FailureKind:
    """Return the kind of a row's error."""
    return _BY_CODE.get(error.code) or (FailureKind.TRANSIENT if error.retry else FailureKind.PERMANENT)

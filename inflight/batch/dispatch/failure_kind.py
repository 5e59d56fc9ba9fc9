"""Why a row got no answer, and so what becomes of row and server."""

from __future__ import annotations

from enum import Enum

from inflight_client import InflightError


class FailureKind(Enum):
    """BUSY: the server has enough; the row is asked later, and fewer at a time. UNAVAILABLE: the server can't answer
    just now. LOST: it was never reached. CRASHED: it, or its engine, died with the row in flight. REJECTED: it takes no
    row of this job, now or later. TRANSIENT: something went wrong with this row, and may not the next time. PERMANENT:
    it would again. AMBIGUOUS: a refusal in words that no code stands for: the row may be at fault, or the server
    refuses whatever it is asked.
    """

    OVERLOADED = "busy"
    UNAVAILABLE = "resting"
    UNREACHABLE = "lost"
    CRASHED = "fell"
    REJECTED = "shut"
    TRANSIENT = "passing"
    PERMANENT = "final"
    AMBIGUOUS = "doubtful"


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
    "invalid_request": FailureKind.AMBIGUOUS,
    "cancelled": FailureKind.TRANSIENT,  # by somebody else, who stopped it on the server
}


def classify_failure(error: InflightError) -> FailureKind:
    """Of a row's error."""
    return _BY_CODE.get(error.code) or (FailureKind.TRANSIENT if error.retry else FailureKind.PERMANENT)

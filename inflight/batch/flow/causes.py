"""Why a row got no answer, and so what becomes of row and server."""

from __future__ import annotations

from enum import Enum

from inflight_client import InflightError


class Cause(Enum):
    """BUSY: the server has enough; the row is asked later, and fewer at a time. RESTING: the server can't answer just
    now. LOST: it was never reached. FELL: it, or its engine, died with the row in flight. SHUT: it takes no row of this
    job, now or later. PASSING: something went wrong with this row, and may not the next time. FINAL: it would again.
    DOUBTFUL: a refusal in words that no code stands for: the row may be at fault, or the server refuses whatever it is
    asked.
    """

    BUSY = "busy"
    RESTING = "resting"
    LOST = "lost"
    FELL = "fell"
    SHUT = "shut"
    PASSING = "passing"
    FINAL = "final"
    DOUBTFUL = "doubtful"


_BY_CODE = {
    "overloaded": Cause.BUSY,
    "engine_restarting": Cause.RESTING,
    "model_not_ready": Cause.RESTING,
    "server_unreachable": Cause.LOST,
    "hung_up": Cause.LOST,
    "host_not_found": Cause.LOST,
    "engine_died": Cause.FELL,
    "server_gone": Cause.FELL,
    "permission_denied": Cause.SHUT,
    "model_not_found": Cause.SHUT,
    "unsupported_deployment": Cause.SHUT,
    "deadline_exceeded": Cause.PASSING,
    "answer_damaged": Cause.PASSING,
    "invalid_request": Cause.DOUBTFUL,
    "cancelled": Cause.PASSING,  # by somebody else, who stopped it on the server
}


def cause(error: InflightError) -> Cause:
    """Of a row's error."""
    return _BY_CODE.get(error.code) or (Cause.PASSING if error.retry else Cause.FINAL)

"""The record of one request: when it was sent, when its tokens arrived, and its outcome."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum


class RequestOutcome(str, Enum):
    """The outcome of a request; each has exactly one."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client disconnected before the end, as the workload wanted."""
    REJECTED = "rejected"
    """The server was full: error code `overloaded`."""
    TIMED_OUT = "timed_out"
    """The request missed its deadline: error code `deadline_exceeded`."""
    FAILED = "failed"
    """Any other error."""
    UNFINISHED = "unfinished"
    """The run ended before the request did."""


LOST = (RequestOutcome.REJECTED, RequestOutcome.TIMED_OUT, RequestOutcome.FAILED, RequestOutcome.UNFINISHED)
"""Outcomes without an answer although the client stayed."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds since the run's start, on the clock of the worker that sent it.

    `due` is when it should have been sent (in a closed loop: when its user was free to), `sent` when it was, `ended`
    when the last response or the error arrived. `chunks` has the time of each response with tokens, in order; none for
    a unary answer. `output_tokens` is the server's count, or else the number of responses. `texts` is the number of
    texts that an encoder was asked to compute, `audio_seconds` the length of its audio. `worker` is
    the number of the process that sent it; `session` and `turn` identify its part of the workload.
    """

    worker: int
    session: int
    turn: int
    due: float
    sent: float
    ended: float
    outcome: RequestOutcome
    max_tokens: int
    chunks: tuple[float, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str = ""
    code: str = ""
    message: str = ""
    texts: int = 0
    audio_seconds: float = 0.0

    def to_json(self) -> str:
        """Return the record as one line of JSON; times in microseconds."""
        values = asdict(self) | {"chunks": [round(moment, 6) for moment in self.chunks]}
        for name in ("due", "sent", "ended"):
            values[name] = round(values[name], 6)
        return json.dumps(values, separators=(",", ":"))

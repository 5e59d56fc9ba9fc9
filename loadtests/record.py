"""One request as it was made: when, how long each token took, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class RequestOutcome(str, Enum):
    """What became of a request; each has exactly one."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """Its client left before the end, as the workload wanted."""
    REJECTED = "rejected"
    """The server had no room: error code `overloaded`."""
    TIMED_OUT = "timed_out"
    """It was not there in its time: error code `deadline_exceeded`."""
    FAILED = "failed"
    """Any other error."""
    UNFINISHED = "unfinished"
    """The run ended before it did."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Moments are seconds since the run's start, on the clock of the worker that sent it.

    `due` is when it ought to have been sent (in a closed loop: when its user was free to), `sent` when it was, `ended`
    when the last response or the error was there. `chunks` has the moment of each response with tokens, in order; none
    for a whole answer. `output_tokens` is the server's count, or where it tells none the number of responses.
    `worker` numbers the process that sent it, `session` and `turn` say which part of the workload it was.
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

    def to_json(self) -> str:
        """The record as one line of JSON; moments to the microsecond."""
        values = asdict(self) | {"chunks": [round(moment, 6) for moment in self.chunks]}
        for name in ("due", "sent", "ended"):
            values[name] = round(values[name], 6)
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RequestRecord:
        """From what `line` wrote. Raises TypeError, KeyError or ValueError for anything else."""
        return cls(**{**values, "outcome": RequestOutcome(values["outcome"]), "chunks": tuple(values["chunks"])})

"""The lines of a batch's rows in the audit log: rows are sent to servers without the gateway's own requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from inflight_client import InflightError
from inflight_client.results import Generation

from inflight.batch.job.rows import Completion, RowAnswer, RowRequest, answer_tokens
from inflight.gateway.audit.line import AuditLine, prompt_of
from inflight.gateway.audit.log import AuditLog
from inflight.gateway.key_ring import Caller


@dataclass(frozen=True)
class RowAudit:
    """Writes them. `model` is the one that the rows name, `prompts` whether the log has these."""

    log: AuditLog
    endpoint: str
    model: str | None
    prompts: bool

    def add(
        self,
        requests: Sequence[RowRequest],
        answers: Sequence[RowAnswer | InflightError],
        line: AuditLine,
        caller: Caller,
        began: float,
    ) -> None:
        """Add a line for each row that was sent; without `answers`, its work was cancelled.

        `line` has what the rows have in common, and `began` is a moment of the monotonic clock.
        """
        line.key, line.key_id = (caller.key.name, caller.key.id) if caller.key else (None, None)
        line.tenant, line.endpoint, line.seconds = caller.tenant or None, self.endpoint, time.monotonic() - began
        for request, answer in zip_longest(requests, answers):
            line.model = request.model or self.model
            line.code, (line.input_tokens, line.output_tokens) = "cancelled", (0, 0)
            if isinstance(answer, InflightError):
                line.code = answer.code
            elif answer is not None:
                line.code, (line.input_tokens, line.output_tokens) = None, answer_tokens(answer)
            line.finish_reasons = _finish_reasons(answer)
            line.prompt = prompt_of(vars(request)) if self.prompts else None
            self.log.add(line.body())


def _finish_reasons(answer: RowAnswer | InflightError | None) -> tuple[str, ...]:
    if isinstance(answer, Generation):
        return (answer.finish_reason,)
    if isinstance(answer, Completion):
        return tuple(str(choice.get("finish_reason") or "stop") for choice in answer.choices)
    return ()

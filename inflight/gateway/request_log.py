"""One line of JSON for each request, without prompts and answers."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from inflight.gateway.http import Request


def log_request(request: Request, tenant: str, seconds: float, began: float) -> None:
    outcome = request.outcome
    first = outcome.first_token_at
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": request.request_id,
        "method": request.method,
        "path": request.path,
        "status": request.status,
        "tenant": tenant,
        "client": request.client,
        "model": outcome.model or None,
        "stream": request.has_events,
        "code": outcome.error or None,
        "param": outcome.param,
        "finish_reasons": [reason for _, reason in sorted(outcome.finish_reasons.items())],
        **({"texts": outcome.texts} if outcome.texts else {}),
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "first_token_seconds": None if first is None else round(first - began, 6),
        "total_seconds": round(seconds, 6),
    }
    print(json.dumps(line), file=sys.stderr, flush=True)

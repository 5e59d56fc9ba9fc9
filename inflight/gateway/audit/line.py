"""The fields of a line of the audit log: the one table from which lines, their documentation and summaries are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from inflight.gateway.key_file import PREFIX
from inflight.gateway.key_ring import Caller

if TYPE_CHECKING:
    from inflight.gateway.http import Request

MAX_PROMPT_BYTES = 2**16
_MAX_CHARACTERS = 200
_KEY = re.compile(re.escape(PREFIX).encode() + rb"[A-Za-z0-9_-]*")
_PROMPTS = ("messages", "prompt", "input", "query", "documents", "texts", "text")
"""The fields of a body that have its prompts."""


def _field(help: str, default: Any = None, *, counted: bool = False) -> Any:
    """Return a field with its meaning; a summary has the numbers of the values of those that are counted."""
    return field(default=default, metadata={"help": help, "counted": counted})


@dataclass(slots=True)
class AuditLine:
    """A line of a request without its place in the chain. What is not known, or does not apply, is null."""

    event: str = _field(
        "`request`; `shadow`: its copy for a [shadow](routes.md#shadow); `batch_row`: a row of a"
        " [batch](gateway.md#batches) that was sent to a server",
        counted=True,
    )
    time: str = _field("when it ended, UTC; lines are in the order of their numbers, also if the clock is set back")
    seconds: float | None = _field("from its arrival to its end")
    request_id: str = _field("`x-request-id`; of a row, its id at the server")
    client: str | None = _field("address of the client")
    key: str | None = _field("name of the API key; of a row, of the key that created the batch", counted=True)
    key_id: str | None = _field("id of the API key, which is the same after a new name")
    tenant: str | None = _field("tenant of the key", counted=True)
    endpoint: str | None = _field("path of the API, or `unknown`", counted=True)
    status: int | None = _field("HTTP status; 499: the client left", counted=True)
    code: str | None = _field("code of the error: why it was refused, or failed", counted=True)
    param: str | None = _field("field of the body that the error names")
    model: str | None = _field("model, or route, that it named", counted=True)
    route: str | None = _field("the route, if it named one of the routes file", counted=True)
    target: str | None = _field(
        "`x-inflight-target`: the model and the number of the server that was asked last", counted=True
    )
    failed: tuple[str, ...] = _field(
        "targets that failed before that one, with the code of the error", (), counted=True
    )
    engine: str | None = _field(
        "hash of the engine's manifest: its files, precision, tokenizer and template", counted=True
    )
    precision: str | None = _field(
        "precision of the engine's weights; not of rows, whose `engine` has it", counted=True
    )
    tier: str | None = _field("`service_tier` that it asked for", counted=True)
    cache: str | None = _field("`x-inflight-cache`: what the [response cache](response-cache.md) did", counted=True)
    rung: str | None = _field("`x-inflight-degraded`: rungs of a [ladder](ladder.md) that changed it", counted=True)
    checks: tuple[str, ...] = _field("what [checks](checks.md) did, as NAME=ACTION", (), counted=True)
    finish_reasons: tuple[str, ...] = _field("how each answer ended", (), counted=True)
    input_tokens: int = _field("tokens of its prompts", 0)
    output_tokens: int = _field("tokens of its answers, also of those that were not finished", 0)
    texts: int = _field("texts that were embedded, reranked or classified", 0)
    routes_sha256: str | None = _field("SHA-256 of the routes file", counted=True)
    keys_sha256: str | None = _field("SHA-256 of the key file without the keys' digests", counted=True)
    prompt: str | None = _field("with `--audit-prompts`: the prompts as JSON, at most 64 KiB of them")

    def body(self) -> bytes:
        """Return the line as JSON, without the text of any API key."""
        self.time = datetime.now(UTC).isoformat(timespec="milliseconds")
        text = orjson.dumps(self)
        return _KEY.sub(b"[key]", text) if PREFIX.encode() in text else text


COUNTED = tuple(each.name for each in fields(AuditLine) if each.metadata["counted"])
TOKENS = ("input_tokens", "output_tokens")


def line_of(event: str, request: Request, caller: Caller, endpoint: str, seconds: float | None = None) -> AuditLine:
    """Return the line of a request that has ended."""
    outcome, key = request.outcome, caller.key
    return AuditLine(
        event,
        seconds=seconds and round(seconds, 6),
        request_id=request.request_id,
        client=request.client or None,
        key=key.name if key else None,
        key_id=key.id if key else None,
        tenant=caller.tenant or None,
        endpoint=endpoint,
        status=request.status or None,
        code=outcome.error or None,
        param=outcome.param,
        model=outcome.model[:_MAX_CHARACTERS] or None,
        target=outcome.target or None,
        failed=tuple(outcome.failed),
        engine=outcome.engine,
        precision=outcome.precision,
        tier=outcome.tier,
        cache=outcome.cache,
        rung=outcome.rung or None,
        checks=tuple(outcome.checks),
        finish_reasons=tuple(reason for _, reason in sorted(outcome.finish_reasons.items())),
        input_tokens=max(outcome.input_tokens, outcome.prompt_tokens if outcome.sent else 0),
        output_tokens=max(outcome.output_tokens, outcome.streamed),
        texts=outcome.texts,
        prompt=outcome.prompt,
    )


def prompt_of(body: Mapping[str, Any]) -> str:
    """Return the prompts of a body as JSON, of which a long one is cut."""
    prompts = orjson.dumps({name: body[name] for name in _PROMPTS if name in body}, default=str)
    return prompts[:MAX_PROMPT_BYTES].decode(errors="ignore") + ("..." if len(prompts) > MAX_PROMPT_BYTES else "")


def field_table() -> str:
    """Return the fields as the table of docs/audit.md."""
    rows = (f"| `{each.name}` | {each.metadata['help']} |\n" for each in fields(AuditLine))
    return "".join(("| field | |\n|---|---|\n", *rows))


if __name__ == "__main__":
    print(field_table(), end="")

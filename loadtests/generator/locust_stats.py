"""Adds TTFT, ITL, TPOT, E2E and tokens/s to Locust's table and charts, each as its own entry."""

from __future__ import annotations

from typing import Any

from locust.env import Environment

from loadtests.record import RequestOutcome, RequestRecord

_UNCOUNTED = (RequestOutcome.CANCELLED, RequestOutcome.UNFINISHED)
"""Outcomes that are neither a success nor a failure of the server."""


class LocustStats:
    """Reports each record to Locust.

    The request itself, from its due time to its end, is fired as Locust's event, so that all listeners receive it, and
    `Aggregated` counts requests. Its parts are added directly to the table, since one request has hundreds of gaps
    between tokens. All times are in milliseconds; `Size` is in tokens, or
    in texts of an encoder.
    """

    def __init__(self, environment: Environment, name: str) -> None:
        self._environment = environment
        self._name = name

    def add(self, record: RequestRecord) -> None:
        if record.outcome in _UNCOUNTED:
            return
        seconds = record.ended - record.due
        failed = record.outcome is not RequestOutcome.COMPLETED
        self._environment.events.request.fire(
            request_type="E2E",
            name=self._name,
            response_time=seconds * 1e3,
            response_length=record.output_tokens or record.texts,
            exception=FailedRequestError(record.code, record.message) if failed else None,
            context={},
        )
        if failed:
            return
        if record.chunks:
            first, last = record.chunks[0], record.chunks[-1]
            self._log("TTFT", (first - record.due) * 1e3)
            for before, after in zip(record.chunks, record.chunks[1:], strict=False):
                self._log("ITL", (after - before) * 1e3)
            if record.output_tokens is not None and record.output_tokens > 1:
                self._log("TPOT", (last - first) / (record.output_tokens - 1) * 1e3)
        if record.output_tokens and seconds > 0:
            self._log("tokens/s", record.output_tokens / seconds)
        if record.texts and seconds > 0:
            self._log("texts/s", record.texts / seconds)

    def _log(self, kind: str, value: float) -> None:
        entry: Any = self._environment.stats.get(self._name, kind)
        entry.log(value, 0)


class FailedRequestError(Exception):
    """A failure listed by its error code, so that failures of a kind share one row."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"RequestError({self.code!r})"

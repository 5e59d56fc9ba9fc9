"""Both HTTP transports, called alike: one test for ordinary code and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from inflight_client._async.http_transport import AsyncHttpTransport
from inflight_client._http.messages import HttpResponse
from inflight_client._sync.http_transport import HttpTransport
from inflight_client.address import Address, Tls
from inflight_client.deadline import NEVER, Deadline
from inflight_client.transport import InferRequest, Tensor

from tests.client.support.leak_checks import no_task_left


def request(id: str = "r-1", **inputs: Tensor) -> InferRequest:
    """To the ensemble, for three tokens by default."""
    text = {"text_input": Tensor("BYTES", (1, 1), ("tea",)), "max_tokens": Tensor("INT32", (1, 1), (3,))}
    return InferRequest("ensemble", id, {**text, "stream": Tensor("BOOL", (1, 1), (True,)), **inputs})


class HttpTransportCaller:
    """A transport, in ordinary code."""

    def __init__(self, transport: Any, runner: asyncio.Runner | None) -> None:
        self.transport = transport
        self._runner = runner

    def ask(self, method: str, *arguments: Any) -> Any:
        return self._done(getattr(self.transport, method)(*arguments))

    def responses(
        self, request: InferRequest, whole: Deadline = NEVER, first: Deadline = NEVER
    ) -> Iterator[HttpResponse]:
        """The responses one by one; closed when the iterator is."""
        found = self.transport.infer(request, whole, first)
        try:
            while (response := self._next(found)) is not None:
                yield response
        finally:
            self._done(found.close())

    def texts(self, request: InferRequest, whole: Deadline = NEVER, first: Deadline = NEVER) -> list[str | None]:
        return [response.text("text_output") for response in self.responses(request, whole, first)]

    def _next(self, responses: Any) -> HttpResponse | None:
        response: HttpResponse | None
        response = next(responses, None) if self._runner is None else self._runner.run(_anext(responses))
        return response

    def _done(self, result: Any) -> Any:
        return result if self._runner is None else self._runner.run(result)


async def _anext(responses: Any) -> Any:
    return await anext(responses, None)


class HttpTransportVariant:
    def __init__(self, aio: bool) -> None:
        self.aio = aio

    def __str__(self) -> str:
        return "asyncio" if self.aio else "threads"

    @contextmanager
    def to(
        self, url: str, headers: Mapping[str, str] | None = None, tls: Tls | None = None
    ) -> Iterator[HttpTransportCaller]:
        """A transport to a server, closed at the end; then no task of it is left."""
        if not self.aio:
            transport = HttpTransport(Address.parse(url), headers or {}, tls)
            try:
                yield HttpTransportCaller(transport, None)
            finally:
                transport.close()
            return
        with asyncio.Runner() as runner:
            aio = AsyncHttpTransport(Address.parse(url), headers or {}, tls)
            try:
                yield HttpTransportCaller(aio, runner)
            finally:
                runner.run(aio.close())
                runner.run(no_task_left(set()))


both_transports = pytest.mark.parametrize("way", [HttpTransportVariant(False), HttpTransportVariant(True)], ids=str)

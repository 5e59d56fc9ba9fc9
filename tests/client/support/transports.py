"""The transports of both protocols, called alike: one test for ordinary code and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from inflight_client._async.http_transport import AsyncHttpTransport
from inflight_client._grpc.async_transport import AsyncGrpcTransport
from inflight_client._grpc.sync_transport import GrpcTransport
from inflight_client._sync.http_transport import HttpTransport
from inflight_client.address import Address, Tls
from inflight_client.deadline import NEVER, Deadline
from inflight_client.transport import InferRequest

from tests.client.support.leak_checks import no_task_left

_CLASSES: Mapping[tuple[str, bool], Any] = {
    ("grpc", False): GrpcTransport,
    ("grpc", True): AsyncGrpcTransport,
    ("http", False): HttpTransport,
    ("http", True): AsyncHttpTransport,
}


class TransportCaller:
    """A transport, in ordinary code: with a runner it is asyncio's."""

    def __init__(self, transport: Any, runner: asyncio.Runner | None) -> None:
        self.transport = transport
        self._runner = runner

    def ask(self, method: str, *arguments: Any) -> Any:
        return self._done(getattr(self.transport, method)(*arguments))

    def responses(self, request: InferRequest, whole: Deadline = NEVER, first: Deadline = NEVER) -> Generator[Any]:
        """The responses one by one; closed when the iterator is."""

        async def send() -> Any:
            return self.transport.infer(request, whole, first)

        found = self.transport.infer(request, whole, first) if self._runner is None else self._runner.run(send())
        try:
            while (response := self._next(found)) is not None:
                yield response
        finally:
            self.close(found)

    def texts(self, request: InferRequest, whole: Deadline = NEVER, first: Deadline = NEVER) -> list[str | None]:
        return [response.text("text_output") for response in self.responses(request, whole, first)]

    def close(self, what: Any) -> None:
        self._done(what.close())

    def _next(self, responses: Any) -> Any:
        async def following() -> Any:
            return await anext(responses, None)

        return next(responses, None) if self._runner is None else self._runner.run(following())

    def _done(self, result: Any) -> Any:
        return result if self._runner is None else self._runner.run(result)


class TransportVariant(NamedTuple):
    protocol: str
    aio: bool

    def __str__(self) -> str:
        return "asyncio" if self.aio else "threads"

    @contextmanager
    def to(
        self, url: str, headers: Mapping[str, str] | None = None, tls: Tls | None = None
    ) -> Iterator[TransportCaller]:
        """A transport to a server, closed at the end; then no task of it is left."""
        transport = _CLASSES[self](Address.parse(url), headers or {}, tls)
        if not self.aio:
            try:
                yield TransportCaller(transport, None)
            finally:
                transport.close()
            return
        with asyncio.Runner() as runner:
            try:
                yield TransportCaller(transport, runner)
            finally:
                runner.run(transport.close())
                runner.run(no_task_left(set()))


both_grpc, both_http = (
    pytest.mark.parametrize("way", [TransportVariant(protocol, aio) for aio in (False, True)], ids=str)
    for protocol in ("grpc", "http")
)
"""Run a test for both transports of a protocol, as `way`."""

"""Both gRPC transports, called alike: one test for ordinary code and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from inflight_client import InflightError
from inflight_client._grpc.async_transport import AsyncGrpcTransport
from inflight_client._grpc.sync_transport import GrpcTransport
from inflight_client.address import Address, Tls
from inflight_client.deadline import NEVER, Deadline
from inflight_client.transport import InferRequest, Tensor
from tritonclient.grpc import service_pb2_grpc

from tests.client.support.leak_checks import no_task_left
from tests.client.support.scripted_server import Script, ScriptedServer

THREADS = 16
"""Of a scripted server: as many calls it takes at once."""


@contextmanager
def serving_at(script: Script, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """A scripted server at a given port, perhaps behind TLS; gives its address."""
    server = grpc.server(pool := ThreadPoolExecutor(THREADS))
    all_here = threading.Barrier(
        THREADS
    )  # so that none is started later, which would look like one that is left behind
    list(pool.map(lambda _: all_here.wait(), range(THREADS)))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(ScriptedServer(script), server)
    # Of IPv4 alone: a port that is free there may be another server's on ::1, and the other way round.
    where = f"127.0.0.1:{port}"
    port = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
    server.start()
    try:
        yield f"{'localhost' if credentials else '127.0.0.1'}:{port}"
    finally:
        server.stop(grace=None).wait()


def request(model: str = "ensemble", max_tokens: int = 3, **more: Any) -> InferRequest:
    """A text to be continued."""
    text = {"text_input": Tensor("BYTES", (1, 1), ("tea",)), "max_tokens": Tensor("INT32", (1, 1), (max_tokens,))}
    return InferRequest(model, "r-1", {**text, "stream": Tensor("BOOL", (1, 1), (True,))}, **more)


class GrpcTransportCaller:
    """A transport, in ordinary code: with a runner it is asyncio's."""

    def __init__(self, transport: Any, runner: asyncio.Runner | None) -> None:
        self.transport = transport
        self._runner = runner

    def ask(self, method: str, *arguments: Any) -> Any:
        function = getattr(self.transport, method)
        return function(*arguments) if self._runner is None else self._runner.run(function(*arguments))

    def responses(self, request: InferRequest, whole: Deadline = NEVER, first: Deadline = NEVER) -> Generator[Any]:
        """The responses one by one; closed when the iterator is."""
        found = self._send(request, whole, first)
        try:
            while (response := self._next(found)) is not None:
                yield response
        finally:
            self.close(found)

    def texts(self, request: InferRequest, whole: Deadline = NEVER, first: Deadline = NEVER) -> list[str | None]:
        return [response.text("text_output") for response in self.responses(request, whole, first)]

    def _send(self, *arguments: Any) -> Any:
        async def send() -> Any:
            return self.transport.infer(*arguments)

        return self.transport.infer(*arguments) if self._runner is None else self._runner.run(send())

    def _next(self, responses: Any) -> Any:
        async def following() -> Any:
            return await anext(responses, None)

        return next(responses, None) if self._runner is None else self._runner.run(following())

    def close(self, what: Any) -> None:
        if self._runner is None:
            what.close()
        else:
            self._runner.run(what.close())


class GrpcTransportVariant:
    def __init__(self, aio: bool) -> None:
        self.aio = aio

    def __str__(self) -> str:
        return "asyncio" if self.aio else "threads"

    @contextmanager
    def to(
        self, url: str, headers: Mapping[str, str] | None = None, tls: Tls | None = None
    ) -> Iterator[GrpcTransportCaller]:
        """A transport to a server, closed at the end; then no task of it is left."""
        address = Address.parse(url)
        if not self.aio:
            caller = GrpcTransportCaller(GrpcTransport(address, headers or {}, tls), None)
            yield caller
            caller.close(caller.transport)
            return
        with asyncio.Runner() as runner:
            caller = GrpcTransportCaller(AsyncGrpcTransport(address, headers or {}, tls), runner)
            yield caller
            caller.close(caller.transport)
            runner.run(no_task_left(set()))


both_transports = pytest.mark.parametrize("way", [GrpcTransportVariant(False), GrpcTransportVariant(True)], ids=str)


def failure(ask: Callable[[], object]) -> tuple[str, str]:
    """The code and the sentence that asking ends in. (The error itself holds the frames, and these the channel.)"""
    try:
        ask()
    except InflightError as error:
        return error.code, str(error)
    pytest.fail("it did not fail")

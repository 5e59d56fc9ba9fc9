"""The four ways to a server, gRPC or HTTP, ordinary code or asyncio, called alike: one test for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import pytest
from inflight_client import AsyncClient, Client
from inflight_client.results import Delta, Generation, Health, Model

from inflight.deploy.server.server import Server
from tests.client.support.leak_checks import no_task_left


class SyncStream(Iterator[Delta], Protocol):
    @property
    def request_id(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def generation(self) -> Generation | None: ...
    def close(self) -> None: ...


class SyncCaller(Protocol):
    """What both clients can do, as ordinary code."""

    def generate(self, prompt: Any, **options: Any) -> Generation: ...
    def stream(self, prompt: Any, **options: Any) -> SyncStream: ...
    def generate_many(self, prompts: Iterable[Any], **options: Any) -> Iterator[Any]: ...
    def cancel(self, request_id: str, **options: Any) -> None: ...
    def health(self, **options: Any) -> Health: ...
    def ready(self, **options: Any) -> bool: ...
    def models(self, **options: Any) -> list[Model]: ...
    def metrics(self, **options: Any) -> Any: ...


class ClientVariant(NamedTuple):
    """A protocol, and ordinary code or asyncio."""

    protocol: str
    aio: bool

    def __str__(self) -> str:
        return f"{self.protocol}-{'asyncio' if self.aio else 'threads'}"

    def port(self, server: Server) -> str:
        """HOST:PORT of the server's port for the protocol."""
        return server.grpc_address if self.protocol == "grpc" else server.http_address

    def url(self, address: str, secure: bool = False) -> str:
        return f"{self.protocol}{'s' if secure else ''}://{address}"

    @contextmanager
    def client(self, server: Server, address: str = "", **options: Any) -> Iterator[SyncCaller]:
        """A client of the server, by another address perhaps, closed at the end; then no task of it is left."""
        url = self.url(address or self.port(server))
        with self.client_at(url, metrics_url=f"http://{server.metrics_address}/metrics", **options) as caller:
            yield caller

    @contextmanager
    def client_at(self, url: str, **options: Any) -> Iterator[SyncCaller]:
        if not self.aio:
            with Client(url, **options) as client:
                yield cast(SyncCaller, client)
            return
        with asyncio.Runner() as runner:
            loop_tasks = runner.run(_tasks())
            async_client = AsyncClient(url, **options)
            try:
                yield _Blocking(runner, async_client)
            finally:
                runner.run(async_client.close())
                runner.run(no_task_left(loop_tasks))


CLIENT_VARIANTS = [ClientVariant(protocol, aio) for protocol in ("grpc", "http") for aio in (False, True)]
every_client = pytest.mark.parametrize("way", CLIENT_VARIANTS, ids=str)
both_protocols = pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=pytest.mark.slow if way.aio == (way.protocol == "http") else ())
        for way in CLIENT_VARIANTS
    ],
    ids=str,
)
"""Each protocol and each of ordinary code and asyncio once; the other two are slow. One client is made of the other."""


class _Blocking:
    """An AsyncClient as ordinary code: its loop runs while a call does."""

    def __init__(self, runner: asyncio.Runner, client: AsyncClient) -> None:
        self._runner = runner
        self._client = client

    def __getattr__(self, method: str) -> Callable[..., Any]:
        function = getattr(self._client, method)
        return lambda *values, **options: self._runner.run(_awaited(function(*values, **options)))

    def stream(self, prompt: Any, **options: Any) -> _Steps:
        return _Steps(self._runner, self._client.stream(prompt, **options))

    def generate_many(self, prompts: Iterable[Any], **options: Any) -> Iterator[Any]:
        return _Steps(self._runner, self._client.generate_many(prompts, **options))


class _Steps(Iterator[Any]):
    """An asynchronous iterator as an ordinary one."""

    def __init__(self, runner: asyncio.Runner, steps: Any) -> None:
        self._runner = runner
        self._steps = steps

    def __next__(self) -> Any:
        try:
            return self._runner.run(_awaited(anext(self._steps)))
        except StopAsyncIteration:
            raise StopIteration from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)

    def close(self) -> None:
        self._runner.run(_awaited(self._steps.aclose()))


async def _awaited(work: Any) -> Any:
    return await work


async def _tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks()

"""An asyncio client's way to its server: the transport, and which deployment stands at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any, TypeVar

from inflight_client.answer import Answer
from inflight_client.call import Call
from inflight_client.deadline import Deadline
from inflight_client.deployment import Deployment
from inflight_client.detection import Question, detect
from inflight_client.errors import InflightError
from inflight_client.model_list import list_models
from inflight_client.results import Health, Model
from inflight_client.retry import Retries, Retry
from inflight_client.settings import Settings
from inflight_client.transport import AsyncResponses, AsyncTransport
from inflight_client.versions import warn_unless_fitting

Found = TypeVar("Found")

ABANDON_SECONDS = 1.0
"""How long an answer that nobody waits for any more may hold up who left it."""


class AsyncConnection:
    """Used by all tasks of a client, in one event loop."""

    def __init__(self, settings: Settings, retry: Retry) -> None:
        self.transport = _transport(settings)
        self._settings = settings
        self._warned = False
        self._deployment: Deployment | None = None
        self.retries = Retries(retry)
        self._finding = asyncio.Lock()

    async def send(self, call: Call, whole: Deadline, first: Deadline) -> tuple[Answer, AsyncResponses]:
        """Send a call's request, once: how to read the answer, and its responses. Raises InflightError."""
        deployment = await self.find(whole.sooner(first))
        last = whole if deployment.streams(call) else whole.sooner(first)  # what the server need not go on behind
        request = deployment.request(call, call.request_id, last.left(), self._settings.chat_template)
        return deployment.answer(call), self.transport.infer(request, whole, first)

    async def abandon(self, call: Call) -> None:
        """The caller left before a whole answer came, which Triton tells nobody: ask the engine to end it."""
        deployment = self._deployment
        if deployment is None or deployment.streams(call):
            return  # the end of a stream is noticed
        with contextlib.suppress(InflightError):
            await self.stop(call.request_id, Deadline(ABANDON_SECONDS, "the end of the request"))

    async def stop(self, request_id: str, deadline: Deadline) -> None:
        """Ask the server to end the requests of that id."""
        deployment = await self.find(deadline)
        responses = self.transport.infer(deployment.stop_request(request_id), deadline, deadline)
        try:
            async for _ in responses:
                pass
        except InflightError as error:
            if not deployment.stopped(error):
                raise
        finally:
            await responses.close()

    async def health(self, deadline: Deadline) -> Health:
        live = ready = False
        try:
            live, ready = await self.transport.live(deadline), await self.transport.ready(deadline)
            return Health.of(live, ready, await self.transport.model_ready((await self.find(deadline)).model, deadline))
        except InflightError as error:
            return Health(live, ready, False, str(error))

    async def models(self, deadline: Deadline) -> list[Model]:
        return await self._ask(list_models(self._settings.model), deadline)

    async def find(self, deadline: Deadline) -> Deployment:
        """The deployment, asked for once; after `forget`, once more."""
        found = self._deployment
        if found is not None:
            return found
        try:
            async with asyncio.timeout(deadline.left()), self._finding:
                if self._deployment is None:
                    self._deployment = await self._ask(detect(self._settings.model), deadline)
                found = self._deployment
        except TimeoutError:
            raise deadline.error() from None
        if not self._warned:
            self._warned = True
            warn_unless_fitting(found.version)
        return found

    def forget(self) -> None:
        """The server was lost: what comes back may be another deployment."""
        self._deployment = None

    async def close(self) -> None:
        await self.transport.close()

    async def _ask(self, questions: Generator[Question, Any, Found], deadline: Deadline) -> Found:
        """Carry questions to the server until whoever asks knows enough."""
        try:
            question = next(questions)
            while True:
                ask = getattr(self.transport, question.method)
                try:
                    answer = await (ask(question.argument, deadline) if question.argument else ask(deadline))
                except InflightError as error:
                    question = questions.throw(error)
                else:
                    question = questions.send(answer)
        except StopIteration as end:
            found: Found = end.value
            return found


def _transport(settings: Settings) -> AsyncTransport:
    """gRPC or HTTP; its library is imported only now."""
    if settings.address.http:
        from inflight_client.http_aio_transport import HttpAioTransport

        return HttpAioTransport(settings.address, settings.headers, settings.tls)
    from inflight_client.grpc_aio_transport import GrpcAioTransport

    return GrpcAioTransport(settings.address, settings.headers, settings.tls)

"""An asyncio client's way to its server: the transport, and which deployment stands at its end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from inflight_client.answer import Answer
from inflight_client.call import Call
from inflight_client.connection import ABANDON_SECONDS, REACH_SECONDS
from inflight_client.deadline import Deadline
from inflight_client.deployment import Deployment
from inflight_client.detection import Question, detect
from inflight_client.errors import ClientClosed, InflightError, Overloaded
from inflight_client.known_deployment import KnownDeployment, asking, unanswered
from inflight_client.model_list import list_models
from inflight_client.results import Health, Model
from inflight_client.retry import Retries, Retry
from inflight_client.settings import Settings
from inflight_client.transport import AsyncResponses, AsyncTransport, InferRequest

Found = TypeVar("Found")


class AsyncConnection:
    """Used by all tasks of a client, in one event loop."""

    def __init__(self, settings: Settings, retry: Retry) -> None:
        self.transport = _transport(settings)
        self._settings = settings
        self._known = KnownDeployment()
        self.retries = Retries(retry)
        self._finding = asyncio.Lock()

    async def send(self, call: Call, whole: Deadline, first: Deadline) -> tuple[Answer, AsyncResponses]:
        """Send a call's request, once: how to read the answer, and its responses. Raises InflightError."""
        deployment = await self.find(whole.sooner(first))
        last = whole if deployment.streams(call) else whole.sooner(first)  # what the server need not go on behind
        make = partial(deployment.request, call, call.request_id, last.left(), self._settings.chat_template)
        # A template may take its time, and the loop belongs to all.
        renders = call.is_chat and self._settings.chat_template is not None
        request = await self._in_a_thread(make, whole.sooner(first)) if renders else make()
        return deployment.answer(call), self.transport.infer(request, whole, first)

    async def _in_a_thread(self, make: Callable[[], InferRequest], deadline: Deadline) -> InferRequest:
        try:
            async with asyncio.timeout(deadline.left()):
                return await asyncio.to_thread(make)
        except TimeoutError:
            raise deadline.error() from None

    async def abandon(self, call: Call, sent: float) -> None:
        """The caller left before a whole answer came, which Triton tells nobody: ask the engine to end it.

        `sent` is when the request was, on the monotonic clock: one that has hardly begun is asked to end once more.
        """
        deployment = self._known.last
        if deployment is None or deployment.streams(call):
            return  # the end of a stream is noticed
        with contextlib.suppress(InflightError):
            deadline = Deadline(ABANDON_SECONDS, "the end of the request")
            await self._stop_surely(call.request_id, deadline)
            if (early := sent + REACH_SECONDS - time.monotonic()) > 0:
                await asyncio.sleep(early)
                await self._stop_surely(call.request_id, deadline)

    async def _stop_surely(self, request_id: str, deadline: Deadline) -> None:
        """A queue may be too full even for this, as where many leave at once."""
        while True:
            try:
                return await self.stop(request_id, deadline)
            except Overloaded:
                await asyncio.sleep(random.uniform(0.02, 0.1))

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
        except ClientClosed:
            raise
        except InflightError as error:
            return Health(live, ready, False, str(error))

    async def models(self, deadline: Deadline) -> list[Model]:
        return await self._ask(list_models(self._settings.model), deadline)

    async def find(self, deadline: Deadline) -> Deployment:
        """The deployment, asked for while it is not known. Raises InflightError."""
        if (found := self._known.fresh()) is not None:
            return found
        began = time.monotonic()
        try:
            async with asyncio.timeout(deadline.left()), self._finding:
                if (found := self._known.fresh()) is not None:
                    return found
                self._known.check(began)
                found = await self._ask(detect(self._settings.model), asking(deadline))
                self._known.learn(found)
                return found
        except TimeoutError:
            raise deadline.error() from None
        except InflightError as error:
            self._known.fail(error)
            raise unanswered(error, deadline) from None

    def forget_after(self, error: InflightError) -> None:
        self._known.forget_after(error)

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

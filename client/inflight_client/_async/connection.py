"""A client's connection for asyncio: the transport and the deployment behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from inflight_client._openai.deployment import completion_request
from inflight_client._openai.deployment import detect as detect_openai
from inflight_client.call import Call
from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, Deadline
from inflight_client.deployments.answer import AnswerDecoder
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.deployment_cache import DeploymentCache, as_not_ready, detection_deadline
from inflight_client.deployments.detection import detect, list_models
from inflight_client.deployments.encoder_detection import EncoderDeployment, find_encoders
from inflight_client.deployments.requests import (
    answer_decoder,
    build_request,
    build_stop_request,
    build_tokenize_request,
)
from inflight_client.deployments.server_query import ServerQuery
from inflight_client.encoder_call import MODELS as ENCODER_MODELS
from inflight_client.encoder_call import EncoderOptions, is_encoder
from inflight_client.errors import ClientClosed, InflightError, Overloaded
from inflight_client.results import Health, Model
from inflight_client.retry import Retries, Retry
from inflight_client.settings import ClientSettings
from inflight_client.transport import AsyncResponses, AsyncTransport, InferRequest

if TYPE_CHECKING:
    from inflight_client.audio.clip_call import ClipOptions
    from inflight_client.metrics import Metrics

Result = TypeVar("Result")

_ABANDON_TIMEOUT = 1.0
"""How many seconds cancelling an abandoned answer may block the caller."""
_MAX_DISPATCH_SECONDS = 0.25
"""How long a request may take through the models before the engine, where a stop request does not find it."""


class AsyncConnection:
    """Shared by all tasks of a client, in one event loop; a child process that inherits it resets it."""

    def __init__(self, settings: ClientSettings, retry: Retry) -> None:
        self.transport = _transport(settings)
        self._settings = settings
        self._retry = retry
        self._deployment_cache = DeploymentCache()
        self._detect, self._build_request = (
            (detect_openai, completion_request) if settings.address.openai else (detect, build_request)
        )
        self._start()

    def _start(self) -> None:
        """Create locks for this process: an inherited lock may be held by a thread of the parent."""
        self._process = os.getpid()
        self._detection_lock = asyncio.Lock()
        self._retries = Retries(self._retry)

    def _restart_after_fork(self) -> None:
        if self._process != os.getpid():
            self._start()

    @property
    def retries(self) -> Retries:
        self._restart_after_fork()
        return self._retries

    async def send(self, call: Call, whole: Deadline, first: Deadline) -> tuple[AnswerDecoder, AsyncResponses]:
        """Send a call's request once; return the decoder and the responses. Raises InflightError."""
        deployment = await self.find_deployment(whole.sooner(first))
        last = whole if deployment.streams(call) else whole.sooner(first)  # the server may drop the request after this
        make = partial(self._build_request, deployment, call, last.left(), self._settings.chat_template)
        renders = call.is_chat and self._settings.chat_template is not None  # async only
        # sync: request = make()
        request = await self._run_in_thread(make, whole.sooner(first)) if renders else make()
        return answer_decoder(deployment, call), self.transport.infer(request, whole, first)

    async def _run_in_thread(  # async only
        self, make: Callable[[], InferRequest], deadline: Deadline
    ) -> InferRequest:
        """Render outside the event loop, which a slow template would block."""
        try:
            async with asyncio.timeout(deadline.left()):
                return await asyncio.to_thread(make)
        except TimeoutError:
            raise deadline.error() from None

    async def abandon(self, call: Call, sent: float) -> None:
        """Stop a request whose unary answer the caller gave up; Triton does not report the disconnect to the engine.

        `sent` is the request's time on the monotonic clock; a very recent request is stopped a second time.
        """
        deployment = self._deployment_cache.last
        if deployment is None or deployment.streams(call):
            return  # Triton reports the end of a stream
        with contextlib.suppress(InflightError):
            deadline = Deadline(_ABANDON_TIMEOUT, "the end of the request")
            await self._cancel_with_retry(call.request_id, deadline)
            if (early := sent + _MAX_DISPATCH_SECONDS - time.monotonic()) > 0:
                await asyncio.sleep(early)
                await self._cancel_with_retry(call.request_id, deadline)

    async def _cancel_with_retry(self, request_id: str, deadline: Deadline) -> None:
        """Cancel the request, and retry while the server's queue is too full for the stop request."""
        while True:
            try:
                return await self.cancel(request_id, deadline)
            except Overloaded:
                await asyncio.sleep(random.uniform(0.02, 0.1))

    async def cancel(self, request_id: str, deadline: Deadline) -> None:
        """Ask the server to cancel the requests with this id."""
        deployment = await self.find_deployment(deadline)
        responses = self.transport.infer(build_stop_request(deployment, request_id), deadline, deadline)
        try:
            async for _ in responses:
                pass
        except InflightError as error:
            if not deployment.is_stop_response(error):
                raise
        finally:
            await responses.close()

    async def tokenize(self, text: str, deadline: Deadline) -> tuple[int, ...]:
        """Return the token ids of a text as those of a prompt. Raises InflightError."""
        request = build_tokenize_request(await self.find_deployment(deadline), text)
        responses = self.transport.infer(request, deadline, deadline)
        try:
            async for response in responses:
                if (ids := response.integers("INPUT_ID")) is not None:
                    return ids
        finally:
            await responses.close()
        raise InflightError(f"the answer of {request.model} has no INPUT_ID; send the text again", "answer_damaged")

    async def health(self, deadline: Deadline) -> Health:
        live = ready = False
        try:
            live, ready = await self.transport.live(deadline), await self.transport.ready(deadline)
            model = await self._find_model(deadline)
            return Health.from_states(live, ready, await self.transport.model_ready(model, deadline))
        except ClientClosed:
            raise
        except InflightError as error:
            return Health(live, ready, False, str(error))

    async def models(self, deadline: Deadline) -> list[Model]:
        return await self._run_queries(list_models(self._settings.model), deadline)

    async def find_encoders(self, deadline: Deadline) -> tuple[EncoderDeployment, ...]:
        return await self._run_queries(find_encoders(), deadline)

    async def metrics(self, deadline: Deadline) -> Metrics:
        """Fetch the metrics page, at the port that the server publishes. Raises InflightError."""
        from inflight_client._async.http_transport import async_fetch_metrics

        served: Mapping[str, Any] = {}
        if not self._settings.metrics_url:
            with contextlib.suppress(InflightError):
                served = await self._find_served(deadline)
        url = self._settings.metrics_page(served.get("metrics_port"))
        return await async_fetch_metrics(url, deadline, self._settings)

    async def _find_served(self, deadline: Deadline) -> Mapping[str, Any]:
        """Return what the server publishes of the model for texts, or else of an encoder."""
        try:
            return (await self.find_deployment(deadline)).served
        except InflightError as error:
            if error.code != "unsupported_deployment":
                raise
            encoders = await self.find_encoders(deadline)
            return encoders[0].served if encoders else {}

    async def find_deployment(self, deadline: Deadline) -> Deployment:
        """Return the deployment; detect it if it is not cached. Raises InflightError."""
        if (deployment := self._deployment_cache.fresh()) is not None:
            return deployment
        self._restart_after_fork()
        began = time.monotonic()
        try:
            # sync: with acquired(self._detection_lock, deadline):
            async with asyncio.timeout(deadline.left()), self._detection_lock:
                if (deployment := self._deployment_cache.fresh()) is not None:
                    return deployment
                self._deployment_cache.raise_recent_failure(began)
                deployment = await self._run_queries(self._detect(self._settings.model), detection_deadline(deadline))
                self._deployment_cache.store(deployment)
                return deployment
        except TimeoutError:
            raise deadline.error() from None
        except InflightError as error:
            self._deployment_cache.record_failure(error)
            raise as_not_ready(error, deadline) from None

    async def _find_model(self, deadline: Deadline) -> str:
        """Return the name of the text model; of a server without one, that of an encoder. Raises InflightError."""
        try:
            return (await self.find_deployment(deadline)).model
        except InflightError as error:
            if error.code != "unsupported_deployment":
                raise
            if (encoder := await self._find_encoder(deadline)) is None:
                raise
            return encoder

    async def _find_encoder(self, deadline: Deadline) -> str | None:
        """Return the name of an encoder of the server: of the client's model, if it names one."""
        named = self._settings.model
        if self._settings.address.openai:
            encoders = [model.name for model in await self.transport.index(deadline) if model.task in ENCODER_MODELS]
            return next((name for name in encoders if named in (None, name)), None)
        for name in ENCODER_MODELS.values() if named is None else (named,):
            if await self._is_encoder(name, deadline):
                return name
        return None

    async def _is_encoder(self, model: str, deadline: Deadline) -> bool:
        try:
            metadata = await self.transport.metadata(model, deadline)
        except InflightError as error:
            if error.code in ("model_not_found", "model_not_ready"):
                return False
            raise
        return is_encoder(metadata)

    async def explain_encoder_error(self, error: InflightError, options: EncoderOptions | ClipOptions) -> InflightError:
        """Return the error of an encoder's request, with the next step if the server has no such model."""
        if self._settings.address.openai:
            return error  # it names the gateway's models
        if error.code == "invalid_request" and self._settings.model is not None:
            with contextlib.suppress(InflightError):
                deadline = Deadline(DEFAULT_QUERY_TIMEOUT, "the model's description")
                return options.unsuitable_model(error, await self.transport.metadata(options.model, deadline))
        return options.no_model(error)

    def invalidate_after(self, error: InflightError) -> None:
        self._deployment_cache.invalidate_after(error)

    def invalidate(self) -> None:
        """Detect the deployment again before the next call."""
        self._deployment_cache.invalidate()

    async def close(self) -> None:
        await self.transport.close()

    async def _run_queries(self, questions: Generator[ServerQuery, Any, Result], deadline: Deadline) -> Result:
        """Send the generator's queries to the server and return its result."""
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
            result: Result = end.value
            return result


def _transport(settings: ClientSettings) -> AsyncTransport:
    """Return a gRPC or HTTP transport; its library is imported here."""
    if settings.address.openai:
        from inflight_client._async.openai_transport import AsyncOpenAiTransport

        return AsyncOpenAiTransport(settings.address, settings.headers, settings.tls)
    if settings.address.http:
        from inflight_client._async.http_transport import AsyncHttpTransport

        return AsyncHttpTransport(settings.address, settings.headers, settings.tls)
    from inflight_client._grpc.async_transport import AsyncGrpcTransport

    return AsyncGrpcTransport(settings.address, settings.headers, settings.tls)

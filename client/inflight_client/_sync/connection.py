# Generated from _async/connection.py by scripts/unasync.py; do not edit.
"""A client's connection for blocking code: the transport and the deployment behind it."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from inflight_client._openai.deployment import completion_request
from inflight_client._openai.deployment import detect as detect_openai
from inflight_client.call import Call
from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, Deadline, acquired
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
from inflight_client.transport import Responses, Transport

if TYPE_CHECKING:
    from inflight_client.audio.clip_call import ClipOptions
    from inflight_client.metrics import Metrics

Result = TypeVar("Result")

_ABANDON_TIMEOUT = 1.0
"""How many seconds cancelling an abandoned answer may block the caller."""
_MAX_DISPATCH_SECONDS = 0.25
"""How long a request may take through the models before the engine, where a stop request does not find it."""


class Connection:
    """Shared by all threads of a client; a child process that inherits it resets it."""

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
        self._detection_lock = threading.RLock()
        self._retries = Retries(self._retry)

    def _restart_after_fork(self) -> None:
        if self._process != os.getpid():
            self._start()

    @property
    def retries(self) -> Retries:
        self._restart_after_fork()
        return self._retries

    def send(self, call: Call, whole: Deadline, first: Deadline) -> tuple[AnswerDecoder, Responses]:
        """Send a call's request once; return the decoder and the responses. Raises InflightError."""
        deployment = self.find_deployment(whole.sooner(first))
        last = whole if deployment.streams(call) else whole.sooner(first)  # the server may drop the request after this
        make = partial(self._build_request, deployment, call, last.left(), self._settings.chat_template)
        request = make()
        return answer_decoder(deployment, call), self.transport.infer(request, whole, first)

    def abandon(self, call: Call, sent: float) -> None:
        """Stop a request whose unary answer the caller gave up; Triton does not report the disconnect to the engine.

        `sent` is the request's time on the monotonic clock; a very recent request is stopped a second time.
        """
        deployment = self._deployment_cache.last
        if deployment is None or deployment.streams(call):
            return  # Triton reports the end of a stream
        with contextlib.suppress(InflightError):
            deadline = Deadline(_ABANDON_TIMEOUT, "the end of the request")
            self._cancel_with_retry(call.request_id, deadline)
            if (early := sent + _MAX_DISPATCH_SECONDS - time.monotonic()) > 0:
                time.sleep(early)
                self._cancel_with_retry(call.request_id, deadline)

    def _cancel_with_retry(self, request_id: str, deadline: Deadline) -> None:
        """Cancel the request, and retry while the server's queue is too full for the stop request."""
        while True:
            try:
                return self.cancel(request_id, deadline)
            except Overloaded:
                time.sleep(random.uniform(0.02, 0.1))

    def cancel(self, request_id: str, deadline: Deadline) -> None:
        """Ask the server to cancel the requests with this id."""
        deployment = self.find_deployment(deadline)
        responses = self.transport.infer(build_stop_request(deployment, request_id), deadline, deadline)
        try:
            for _ in responses:
                pass
        except InflightError as error:
            if not deployment.is_stop_response(error):
                raise
        finally:
            responses.close()

    def tokenize(self, text: str, deadline: Deadline) -> tuple[int, ...]:
        """Return the token ids of a text as those of a prompt. Raises InflightError."""
        request = build_tokenize_request(self.find_deployment(deadline), text)
        responses = self.transport.infer(request, deadline, deadline)
        try:
            for response in responses:
                if (ids := response.integers("INPUT_ID")) is not None:
                    return ids
        finally:
            responses.close()
        raise InflightError(f"the answer of {request.model} has no INPUT_ID; send the text again", "answer_damaged")

    def health(self, deadline: Deadline) -> Health:
        live = ready = False
        try:
            live, ready = self.transport.live(deadline), self.transport.ready(deadline)
            model = self._find_model(deadline)
            return Health.from_states(live, ready, self.transport.model_ready(model, deadline))
        except ClientClosed:
            raise
        except InflightError as error:
            return Health(live, ready, False, str(error))

    def models(self, deadline: Deadline) -> list[Model]:
        return self._run_queries(list_models(self._settings.model), deadline)

    def find_encoders(self, deadline: Deadline) -> tuple[EncoderDeployment, ...]:
        return self._run_queries(find_encoders(), deadline)

    def metrics(self, deadline: Deadline) -> Metrics:
        """Fetch the metrics page, at the port that the server publishes. Raises InflightError."""
        from inflight_client._sync.http_transport import fetch_metrics

        served: Mapping[str, Any] = {}
        if not self._settings.metrics_url:
            with contextlib.suppress(InflightError):
                served = self._find_served(deadline)
        url = self._settings.metrics_page(served.get("metrics_port"))
        return fetch_metrics(url, deadline, self._settings)

    def _find_served(self, deadline: Deadline) -> Mapping[str, Any]:
        """Return what the server publishes of the model for texts, or else of an encoder."""
        try:
            return (self.find_deployment(deadline)).served
        except InflightError as error:
            if error.code != "unsupported_deployment":
                raise
            encoders = self.find_encoders(deadline)
            return encoders[0].served if encoders else {}

    def find_deployment(self, deadline: Deadline) -> Deployment:
        """Return the deployment; detect it if it is not cached. Raises InflightError."""
        if (deployment := self._deployment_cache.fresh()) is not None:
            return deployment
        self._restart_after_fork()
        began = time.monotonic()
        try:
            with acquired(self._detection_lock, deadline):
                if (deployment := self._deployment_cache.fresh()) is not None:
                    return deployment
                self._deployment_cache.raise_recent_failure(began)
                deployment = self._run_queries(self._detect(self._settings.model), detection_deadline(deadline))
                self._deployment_cache.store(deployment)
                return deployment
        except TimeoutError:
            raise deadline.error() from None
        except InflightError as error:
            self._deployment_cache.record_failure(error)
            raise as_not_ready(error, deadline) from None

    def _find_model(self, deadline: Deadline) -> str:
        """Return the name of the text model; of a server without one, that of an encoder. Raises InflightError."""
        try:
            return (self.find_deployment(deadline)).model
        except InflightError as error:
            if error.code != "unsupported_deployment":
                raise
            if (encoder := self._find_encoder(deadline)) is None:
                raise
            return encoder

    def _find_encoder(self, deadline: Deadline) -> str | None:
        """Return the name of an encoder of the server: of the client's model, if it names one."""
        named = self._settings.model
        if self._settings.address.openai:
            encoders = [model.name for model in self.transport.index(deadline) if model.task in ENCODER_MODELS]
            return next((name for name in encoders if named in (None, name)), None)
        for name in ENCODER_MODELS.values() if named is None else (named,):
            if self._is_encoder(name, deadline):
                return name
        return None

    def _is_encoder(self, model: str, deadline: Deadline) -> bool:
        try:
            metadata = self.transport.metadata(model, deadline)
        except InflightError as error:
            if error.code in ("model_not_found", "model_not_ready"):
                return False
            raise
        return is_encoder(metadata)

    def explain_encoder_error(self, error: InflightError, options: EncoderOptions | ClipOptions) -> InflightError:
        """Return the error of an encoder's request, with the next step if the server has no such model."""
        if self._settings.address.openai:
            return error  # it names the gateway's models
        if error.code == "invalid_request" and self._settings.model is not None:
            with contextlib.suppress(InflightError):
                deadline = Deadline(DEFAULT_QUERY_TIMEOUT, "the model's description")
                return options.unsuitable_model(error, self.transport.metadata(options.model, deadline))
        return options.no_model(error)

    def invalidate_after(self, error: InflightError) -> None:
        self._deployment_cache.invalidate_after(error)

    def invalidate(self) -> None:
        """Detect the deployment again before the next call."""
        self._deployment_cache.invalidate()

    def close(self) -> None:
        self.transport.close()

    def _run_queries(self, questions: Generator[ServerQuery, Any, Result], deadline: Deadline) -> Result:
        """Send the generator's queries to the server and return its result."""
        try:
            question = next(questions)
            while True:
                ask = getattr(self.transport, question.method)
                try:
                    answer = ask(question.argument, deadline) if question.argument else ask(deadline)
                except InflightError as error:
                    question = questions.throw(error)
                else:
                    question = questions.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result


def _transport(settings: ClientSettings) -> Transport:
    """Return a gRPC or HTTP transport; its library is imported here."""
    if settings.address.openai:
        from inflight_client._sync.openai_transport import OpenAiTransport

        return OpenAiTransport(settings.address, settings.headers, settings.tls)
    if settings.address.http:
        from inflight_client._sync.http_transport import HttpTransport

        return HttpTransport(settings.address, settings.headers, settings.tls)
    from inflight_client._grpc.sync_transport import GrpcTransport

    return GrpcTransport(settings.address, settings.headers, settings.tls)

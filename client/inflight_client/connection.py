"""A client's way to its server: the transport, and which deployment stands at its end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator
from typing import Any, TypeVar

from inflight_client.answer import Answer
from inflight_client.call import Call
from inflight_client.deadline import Deadline
from inflight_client.deployment import Deployment
from inflight_client.detection import Question, detect
from inflight_client.errors import ClientClosed, InflightError
from inflight_client.known_deployment import KnownDeployment, asking, unanswered
from inflight_client.model_list import list_models
from inflight_client.results import Health, Model
from inflight_client.retry import Retries, Retry
from inflight_client.settings import Settings
from inflight_client.transport import Responses, Transport

Found = TypeVar("Found")

ABANDON_SECONDS = 1.0
"""How long an answer that nobody waits for any more may hold up who left it."""
REACH_SECONDS = 0.25
"""How long a request may be on its way to the engine, through the models before it, where a stop does not find it."""


class Connection:
    """Used by all threads of a client; one that a child process inherits starts anew there."""

    def __init__(self, settings: Settings, retry: Retry) -> None:
        self.transport = _transport(settings)
        self._settings = settings
        self._retry = retry
        self._known = KnownDeployment()
        self._start()

    def _start(self) -> None:
        """Locks of this process: a parent's may be held by threads that are not here."""
        self._process = os.getpid()
        self._finding = threading.Lock()
        self._retries = Retries(self._retry)

    def _be_here(self) -> None:
        if self._process != os.getpid():
            self._start()

    @property
    def retries(self) -> Retries:
        self._be_here()
        return self._retries

    def send(self, call: Call, whole: Deadline, first: Deadline) -> tuple[Answer, Responses]:
        """Send a call's request, once: how to read the answer, and its responses. Raises InflightError."""
        deployment = self.find(whole.sooner(first))
        last = whole if deployment.streams(call) else whole.sooner(first)  # what the server need not go on behind
        request = deployment.request(call, call.request_id, last.left(), self._settings.chat_template)
        return deployment.answer(call), self.transport.infer(request, whole, first)

    def abandon(self, call: Call, sent: float) -> None:
        """The caller left before a whole answer came, which Triton tells nobody: ask the engine to end it.

        `sent` is when the request was, on the monotonic clock: one that has hardly begun is asked to end once more.
        """
        deployment = self._known.last
        if deployment is None or deployment.streams(call):
            return  # the end of a stream is noticed
        with contextlib.suppress(InflightError):
            deadline = Deadline(ABANDON_SECONDS, "the end of the request")
            self.stop(call.request_id, deadline)
            if (early := sent + REACH_SECONDS - time.monotonic()) > 0:
                time.sleep(early)
                self.stop(call.request_id, deadline)

    def stop(self, request_id: str, deadline: Deadline) -> None:
        """Ask the server to end the requests of that id."""
        deployment = self.find(deadline)
        responses = self.transport.infer(deployment.stop_request(request_id), deadline, deadline)
        try:
            for _ in responses:
                pass
        except InflightError as error:
            if not deployment.stopped(error):
                raise
        finally:
            responses.close()

    def health(self, deadline: Deadline) -> Health:
        live = ready = False
        try:
            live, ready = self.transport.live(deadline), self.transport.ready(deadline)
            return Health.of(live, ready, self.transport.model_ready(self.find(deadline).model, deadline))
        except ClientClosed:
            raise
        except InflightError as error:
            return Health(live, ready, False, str(error))

    def models(self, deadline: Deadline) -> list[Model]:
        return self._ask(list_models(self._settings.model), deadline)

    def find(self, deadline: Deadline) -> Deployment:
        """The deployment, asked for while it is not known. Raises InflightError."""
        self._be_here()
        if (found := self._known.fresh()) is not None:
            return found
        began = time.monotonic()
        if not self._finding.acquire(timeout=-1 if deadline.at is None else deadline.left() or 0):
            raise deadline.error()
        try:
            if (found := self._known.fresh()) is not None:
                return found
            self._known.check(began)
            found = self._ask(detect(self._settings.model), asking(deadline))
            self._known.learn(found)
            return found
        except InflightError as error:
            self._known.fail(error)
            raise unanswered(error, deadline) from None
        finally:
            self._finding.release()

    def forget_after(self, error: InflightError) -> None:
        self._known.forget_after(error)

    def forget(self) -> None:
        """Look at the deployment anew before the next call."""
        self._known.forget()

    def close(self) -> None:
        self.transport.close()

    def _ask(self, questions: Generator[Question, Any, Found], deadline: Deadline) -> Found:
        """Carry questions to the server until whoever asks knows enough."""
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
            found: Found = end.value
            return found


def _transport(settings: Settings) -> Transport:
    """gRPC or HTTP; its library is imported only now."""
    if settings.address.http:
        from inflight_client.http_transport import HttpTransport

        return HttpTransport(settings.address, settings.headers, settings.tls)
    from inflight_client.grpc_transport import GrpcTransport

    return GrpcTransport(settings.address, settings.headers, settings.tls)

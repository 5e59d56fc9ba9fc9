"""Sends one request and records its outcome."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gevent
from inflight_client import Client, Delta, InflightError, Sampling

from loadtests.generator.clock import RunClock
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.workloads.interface import AnyRequest, RequestSpec, TextsRequest

_OUTCOMES = {"overloaded": RequestOutcome.REJECTED, "deadline_exceeded": RequestOutcome.TIMED_OUT}
_MAX_MESSAGE_CHARACTERS = 500
"""Maximum characters of an error message in a record."""


class ClientCancels(BaseException):
    """The request's client disconnects now, as the workload wants. (Not an error: nothing may catch it on the way.)"""


class RunEnded(BaseException):
    """The run's time to drain is over for this request."""


class RequestSender:
    """Sends the requests of a process, many at a time, each in its own greenlet."""

    def __init__(
        self, client: Client, plan: LoadPlan, clock: RunClock, worker: int, on_record: Callable[[RequestRecord], None]
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._on_record = on_record
        self._call: _Call = _Encoder(client, plan) if plan.encodes else _Generator(client, plan, clock)

    def send(self, request: AnyRequest, session: int, turn: int, due: float) -> str | None:
        """Send the request now, report its record, and return the answer's text; None without a complete answer.

        An exception that ends the greenlet propagates after the record is reported.
        """
        answer = _PartialAnswer()
        sent = self._clock.now()
        outcome, code, message = RequestOutcome.UNFINISHED, "", ""
        try:
            with _cancel_after(request.cancel_after):
                self._call(request, answer)
            outcome = RequestOutcome.COMPLETED
        except ClientCancels:
            outcome = RequestOutcome.CANCELLED
        except RunEnded:
            pass
        except InflightError as error:
            outcome = _OUTCOMES.get(error.code, RequestOutcome.FAILED)
            code, message = error.code, str(error)[:_MAX_MESSAGE_CHARACTERS]
        except Exception as error:  # a bug must not end the run, but must be seen
            outcome, code, message = RequestOutcome.FAILED, type(error).__name__, str(error)[:_MAX_MESSAGE_CHARACTERS]
        finally:
            self._on_record(
                RequestRecord(
                    worker=self._worker,
                    session=session,
                    turn=turn,
                    due=due,
                    sent=sent,
                    ended=self._clock.now(),
                    outcome=outcome,
                    max_tokens=request.max_tokens if isinstance(request, RequestSpec) else 0,
                    texts=len(request.texts) if isinstance(request, TextsRequest) else 0,
                    chunks=answer.chunks(),
                    input_tokens=answer.input_tokens,
                    output_tokens=answer.output_tokens,
                    finish_reason=answer.finish_reason,
                    code=code,
                    message=message,
                )
            )
        return "".join(answer.texts) if outcome is RequestOutcome.COMPLETED else None


class _Call(Protocol):
    """Sends a request of one task and completes its answer. Raises InflightError."""

    def __call__(self, request: Any, answer: _PartialAnswer) -> None: ...


class _Generator:
    """Generates the answer to a prompt."""

    def __init__(self, client: Client, plan: LoadPlan, clock: RunClock) -> None:
        self._client = client
        self._clock = clock
        self._stream = plan.streams
        top_p = plan.top_p if plan.temperature else None
        sampling = Sampling(temperature=plan.temperature, top_p=top_p, end_id=-1 if plan.ignore_eos else None)
        self._options: dict[str, Any] = {"timeout": plan.timeout, "tenant": plan.tenant, "sampling": sampling}

    def __call__(self, request: RequestSpec, answer: _PartialAnswer) -> None:
        if not self._stream:
            whole = self._client.generate(request.prompt, max_tokens=request.max_tokens, **self._options)
            answer.set_complete(whole.text, whole.finish_reason, whole.input_tokens, whole.output_tokens)
            return
        now = self._clock.now
        with self._client.stream(request.prompt, max_tokens=request.max_tokens, **self._options) as stream:
            for delta in stream:
                answer.add_delta(delta, now())


class _Encoder:
    """Has the texts of a request embedded, reranked or classified. The first text with an error fails the request."""

    def __init__(self, client: Client, plan: LoadPlan) -> None:
        self._client = client
        self._task = plan.task
        self._options: dict[str, Any] = {"timeout": plan.timeout, "priority": plan.priority}
        if plan.task == "embed":
            self._options["input_type"] = plan.input_type

    def __call__(self, request: TextsRequest, answer: _PartialAnswer) -> None:
        client, texts = self._client, list(request.texts)
        if self._task == "rerank":
            tokens = client.rerank(request.query, texts, **self._options).input_tokens
        elif self._task == "embed":
            tokens = client.embed(texts, **self._options).input_tokens
        else:
            tokens = client.classify(texts, **self._options).input_tokens
        answer.set_complete("", "", sum(tokens), None)


class _PartialAnswer:
    """The part of an answer received so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.finish_reason = ""
        self.input_tokens: int | None = None
        self._counted: int | None = None
        self._moments: list[float] = []
        self._last_is_empty = False

    def add_delta(self, delta: Delta, moment: float) -> None:
        self.texts.append(delta.text)
        self._moments.append(moment)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self._last_is_empty = not delta.text
            self.input_tokens, self._counted = delta.input_tokens, delta.output_tokens

    def set_complete(self, text: str, reason: str, input_tokens: int | None, output_tokens: int | None) -> None:
        self.texts.append(text)
        self.finish_reason, self.input_tokens, self._counted = reason, input_tokens, output_tokens

    def chunks(self) -> tuple[float, ...]:
        """The times of responses with tokens. A last response without text may only have signalled the end."""
        moments = self._moments
        if self._last_is_empty and (self._counted is None or len(moments) > self._counted):
            moments = moments[:-1]
        return tuple(moments)

    @property
    def output_tokens(self) -> int | None:
        """The server's count, or else one per response; None for unary answers without a count."""
        if self._counted is not None or not self._moments:
            return self._counted
        return len(self.chunks())


@contextlib.contextmanager
def _cancel_after(seconds: float | None) -> Iterator[None]:
    """Raise ClientCancels in the block after this many seconds."""
    if seconds is None:
        yield
        return
    with gevent.Timeout(seconds, ClientCancels()):
        yield

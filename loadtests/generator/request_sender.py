"""Sends one request and records its outcome."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
from inflight_client import Client, Delta, InflightError, Sampling

from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.workloads.interface import AnyRequest, RequestSpec, TextsRequest


class RunClock:
    """Seconds since the run's start, on the monotonic clock; negative before it."""

    def __init__(self, seconds_ahead: float) -> None:
        self.start = time.monotonic() + seconds_ahead

    def now(self) -> float:
        return time.monotonic() - self.start

    def sleep_until(self, moment: float) -> None:
        """Let other greenlets run until then; return at once if the time has passed."""
        left = moment - self.now()
        if left > 0:
            gevent.sleep(left)

    def start_at(self, moment: float, work: Callable[..., Any], *arguments: Any) -> gevent.Greenlet:
        """Start work in its own greenlet at that time.

        A separate timer starts it before everything that is waiting for its turn by then. Tokens of many answers arrive
        at the same time, and after them the work would be late by the time that they all take.
        """
        loop = gevent.get_hub().loop
        timer = loop.timer(max(0.0, moment - self.now()), priority=loop.MAXPRI)
        greenlet = gevent.Greenlet(work, *arguments)

        def begin() -> None:
            timer.close()
            greenlet.switch()

        timer.start(begin, update=True)
        return greenlet


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
        make = _transcription if plan.task == "transcribe" else _encoding
        self._call = make(client, plan) if plan.encodes else _generation(client, plan, clock)

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
                    audio_seconds=answer.audio_seconds,
                    finish_reason=answer.finish_reason,
                    code=code,
                    message=message,
                )
            )
        return "".join(answer.texts) if outcome is RequestOutcome.COMPLETED else None


_Call = Callable[[Any, "_PartialAnswer"], None]
"""Sends a request of one task and completes its answer. Raises InflightError."""


def _generation(client: Client, plan: LoadPlan, clock: RunClock) -> _Call:
    """Return the call that generates the answer to a prompt."""
    top_p = plan.top_p if plan.temperature else None
    sampling = Sampling(temperature=plan.temperature, top_p=top_p, end_id=-1 if plan.ignore_eos else None)
    options: dict[str, Any] = {"timeout": plan.timeout, "tenant": plan.tenant, "sampling": sampling}

    def unary(request: RequestSpec, answer: _PartialAnswer) -> None:
        whole = client.generate(request.prompt, max_tokens=request.max_tokens, **options)
        answer.set_complete(whole.text, whole.finish_reason, whole.input_tokens, whole.output_tokens)

    def stream(request: RequestSpec, answer: _PartialAnswer) -> None:
        with client.stream(request.prompt, max_tokens=request.max_tokens, **options) as deltas:
            for delta in deltas:
                answer.add_delta(delta, clock.now())

    return stream if plan.streams else unary


def _encoding(client: Client, plan: LoadPlan) -> _Call:
    """Return the call that embeds, reranks or classifies texts. The first text with an error fails the request."""
    options: dict[str, Any] = {"timeout": plan.timeout, "priority": plan.priority}
    if plan.task == "embed":
        options["input_type"] = plan.input_type

    def encode(request: TextsRequest, answer: _PartialAnswer) -> None:
        texts = list(request.texts)
        if plan.task == "rerank":
            tokens = client.rerank(request.query, texts, **options).input_tokens
        elif plan.task == "embed":
            tokens = client.embed(texts, **options).input_tokens
        else:
            tokens = client.classify(texts, **options).input_tokens
        answer.set_complete("", "", sum(tokens), None)

    return encode


def _transcription(client: Client, plan: LoadPlan) -> _Call:
    """Return the call that transcribes an audio file."""

    def transcribe(request: TextsRequest, answer: _PartialAnswer) -> None:
        (path,) = request.texts
        language = request.query or None
        found = client.transcribe(path, language=language, timeout=plan.timeout, priority=plan.priority)
        answer.audio_seconds = found.duration
        answer.set_complete(found.text, "", None, None)

    return transcribe


class _PartialAnswer:
    """The part of an answer received so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.audio_seconds = 0.0
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

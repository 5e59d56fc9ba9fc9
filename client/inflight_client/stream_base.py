"""The state that both streams share while an answer arrives."""

from __future__ import annotations

import time
from typing import TypeVar

from inflight_client.call import Call
from inflight_client.deployments.answer import AnswerDecoder
from inflight_client.results import Delta, Generation, LogProb, ServerTimings, Timings


class Transcript:
    """Collects the deltas of one answer as the caller gets them."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.attempts = 0
        self._started = 0.0
        self._first = 0.0
        self._ended = 0.0
        self._last = Delta("")
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._log_probs: list[LogProb] = []
        self._prompt_log_probs: tuple[LogProb, ...] | None = None

    def start(self) -> None:
        """Start the clock: the caller waits from now on."""
        self._started = time.monotonic()

    def add(self, delta: Delta) -> None:
        if not self._texts:
            self._first = time.monotonic()
        self._texts.append(delta.text)
        if delta.token_ids is not None:
            self._token_ids += delta.token_ids
        if delta.log_probs is not None:
            self._log_probs += delta.log_probs
        self._prompt_log_probs = self._prompt_log_probs or delta.prompt_log_probs
        if delta.finish_reason is not None:
            self._last = delta
            self._ended = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether the last delta has arrived."""
        return self._last.finish_reason is not None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def generation(self, cumulative_log_prob: float | None, server: ServerTimings | None) -> Generation | None:
        """Return the whole answer; None before its last delta."""
        if self._last.finish_reason is None:
            return None
        return Generation(
            text=self.text,
            finish_reason=self._last.finish_reason,
            usage=self._last.usage,
            timings=Timings(self._first - self._started, self._ended - self._started, self.attempts, server),
            request_id=self.request_id,
            token_ids=_collected(self._token_ids, self._last.token_ids),
            log_probs=_collected(self._log_probs, self._last.log_probs),
            prompt_log_probs=self._prompt_log_probs,
            cumulative_log_prob=cumulative_log_prob,
        )


Number = TypeVar("Number", int, LogProb)


def _collected(collected: list[Number], last: tuple[Number, ...] | None) -> tuple[Number, ...] | None:
    """Return the collected values; None if no delta had any. Some deployments end with a response without them."""
    return tuple(collected) if collected or last is not None else None


class StreamBase:
    """The base of the synchronous and the asyncio stream."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._transcript = Transcript(call.request_id)
        self._answer: AnswerDecoder | None = None

    @property
    def request_id(self) -> str:
        """The id of the request, for the client's `cancel`."""
        return self._call.request_id

    @property
    def text(self) -> str:
        """The text so far."""
        return self._transcript.text

    @property
    def generation(self) -> Generation | None:
        """The whole answer, once its last delta has arrived."""
        if self._answer is None:
            return None
        return self._transcript.generation(self._answer.cumulative_log_prob, self._answer.server_timings)

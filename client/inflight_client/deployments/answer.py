"""Decodes the responses to one request into deltas and detects lost responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_client.call import Call
from inflight_client.deployments.stop_text_buffer import StopTextBuffer
from inflight_client.deployments.tensor_names import TIMING_OUTPUTS
from inflight_client.errors import InflightError
from inflight_client.results import Delta, LogProb, ServerTimings, Usage
from inflight_client.transport import InferResponse

if TYPE_CHECKING:
    from inflight_client.deployments.deployment import Deployment

_FULLY_COUNTED = ("stop", "length")
"""Answers with these finish reasons contain every counted token; others may count tokens that were cut off."""


class AnswerDecoder:
    """Decodes the responses of an inflight deployment, one after another.

    The last one has the finish reason, the counts of tokens, and how many responses there were.
    """

    done = False
    """Whether the client ended the answer: further responses are ignored and the stream is to be closed."""

    def __init__(self, deployment: Deployment, call: Call) -> None:
        self.cumulative_log_prob: float | None = None
        """The sum of the log probabilities so far, if requested."""
        self.server_timings: ServerTimings | None = None
        """Times in the engine, if requested and received."""
        self._deployment = deployment
        self._call = call
        asks_for_ids = (
            call.wants_token_ids is True or call.token_text is None
            if deployment.speaks_tokens
            else call.wants_token_ids is not False and "return_token_ids" in deployment.inputs
        )
        self._asks_for_ids = asks_for_ids
        self._buffer = StopTextBuffer((), whole=True) if deployment.streams(call) and deployment.accumulates else None
        asks_for_details = call.wants_log_probs or call.return_prompt_log_probs or call.return_perf_metrics
        self._plain = not (asks_for_ids or asks_for_details or self._buffer)
        self._responses = 0
        self._token_ids = 0
        self._ended = False

    def add_response(self, response: InferResponse) -> Delta:
        """Return what a response adds. Raises InflightError (`answer_damaged`, `deadline_exceeded`, `cancelled`)."""
        self._responses += 1
        reason = response.text("finish_reason")
        text = self._text(response, reason is not None)
        if self._plain and reason is None and text is not None and not self._ended:
            return Delta(text)
        return self._add_full_response(response, text, reason)

    def finish(self) -> Delta | None:
        """Handle the end of the responses; return the last delta, or None if it was already returned.

        Raises ServerGone for an incomplete answer.
        """
        if self._ended:
            return None
        raise InflightError(
            f"the server ended the answer of {self._deployment.display_name} without saying why; send the request"
            " again",
            "server_gone",
        )

    def _text(self, response: InferResponse, ended: bool) -> str | None:
        """Return the response's text, or the text that its tokens add."""
        if not self._deployment.speaks_tokens:
            return response.text("text_output")
        token_ids = response.integers("output_ids")
        if token_ids is None:
            return None
        if (length := response.integer("sequence_length")) is not None:  # what follows is padding
            token_ids = token_ids[:length]
        if self._call.token_text is None:
            return ""
        return self._call.token_text.decode(token_ids, ended, response.integer("dropped_characters") or 0)

    def _add_full_response(self, response: InferResponse, text: str | None, reason: str | None) -> Delta:
        if self._ended:
            raise self._damaged("data arrived after its end")
        if text is None:
            raise self._damaged("a response has no text_output")
        token_ids = self._read_token_ids(response)
        log_probs = self._read_log_probs(response, "output_log_probs", "top") if self._call.wants_log_probs else None
        of_prompt = (
            self._read_log_probs(response, "prompt_log_probs", "prompt_top")
            if self._call.return_prompt_log_probs
            else None
        )
        per_token = (token_ids, log_probs, of_prompt)
        self._read_metrics(response)
        if reason is None:
            return Delta(text if self._buffer is None else self._buffer.feed(text), None, None, *per_token)
        self._ended = True
        self._check_count(response)
        text = text if self._buffer is None else self._buffer.flush(text)
        return Delta(text, self._checked_reason(reason), self._usage(response, reason), *per_token)

    def _read_log_probs(self, response: InferResponse, name: str, top: str) -> tuple[LogProb, ...] | None:
        """Return log probabilities, with the likeliest tokens at each place if those were requested."""
        values = response.numbers(name)
        if values is None or not self._call.top_log_probs:
            return None if values is None else tuple(map(LogProb, values))
        ids, log_probs = response.array(f"{top}_token_ids"), response.array(f"{top}_log_probs")
        if ids is None or log_probs is None or not ids.size == log_probs.size == len(values) * self._call.top_log_probs:
            raise self._damaged(f"a response has {name} without {top}_token_ids and {top}_log_probs of the same tokens")
        rows = zip(
            *(each.reshape(len(values), self._call.top_log_probs).tolist() for each in (ids, log_probs)), strict=True
        )
        tops = [{token: value for token, value in zip(*row, strict=True) if token >= 0} for row in rows]
        return tuple(LogProb(value, likeliest) for value, likeliest in zip(values, tops, strict=True))

    def _read_token_ids(self, response: InferResponse) -> tuple[int, ...] | None:
        if not self._asks_for_ids:
            return None
        token_ids = response.integers("output_ids" if self._deployment.speaks_tokens else "token_ids")
        if token_ids is None:
            raise self._damaged("a response has no token_ids, which the request asked for")
        self._token_ids += len(token_ids)
        return token_ids

    def _read_metrics(self, response: InferResponse) -> None:
        if self._call.wants_log_probs:
            sums = response.numbers("cum_log_probs")
            if sums:
                self.cumulative_log_prob = sums[0]
        if self._call.return_perf_metrics:
            self.server_timings = self._timings(response) or self.server_timings

    def _timings(self, response: InferResponse) -> ServerTimings | None:
        """Return the times after the request's arrival; None for responses without them."""
        return server_timings([response.integer(name) for name in TIMING_OUTPUTS])

    def _check_count(self, response: InferResponse) -> None:
        sent = response.integer("num_responses")
        if sent is not None and sent != self._responses:
            raise self._damaged(f"the server sent {sent} responses but {self._responses} arrived")

    def _checked_reason(self, reason: str) -> str:
        if reason in ("deadline", "timeout"):
            raise InflightError(
                f"{self._deployment.display_name} dropped the request after its timeout; raise the timeout",
                "deadline_exceeded",
            )
        return reason

    def _usage(self, response: InferResponse, reason: str) -> Usage | None:
        read, written = response.integer("num_input_tokens"), response.integer("num_output_tokens")
        if read is None or written is None:
            return None
        if self._asks_for_ids and reason in _FULLY_COUNTED and self._token_ids != written:
            raise self._damaged(f"the server counts {written} tokens but {self._token_ids} arrived")
        return Usage(read, written, response.integer("num_cached_tokens"))

    def _damaged(self, what: str) -> InflightError:
        return InflightError(
            f"the answer of {self._deployment.display_name} is damaged: {what}; send the request again",
            "answer_damaged",
        )


def server_timings(moments: list[int | None]) -> ServerTimings | None:
    """Return the times in seconds after the first one, the arrival; None if one is missing or 0."""
    arrival, scheduled, first, last = moments
    if not (arrival and scheduled and first and last):
        return None
    return ServerTimings((scheduled - arrival) / 1e9, (first - arrival) / 1e9, (last - arrival) / 1e9)

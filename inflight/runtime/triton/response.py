"""The answers to one request: converts engine events to Triton responses."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import (
    Beam,
    FinishReason,
    GenerationRequest,
    LogProb,
    RequestTimings,
    SpeculationStats,
    TokenEvent,
)
from inflight.runtime.streams.chunk_header import ChunkHeader
from inflight.runtime.triton.request import ResponseOptions
from inflight.runtime.triton.tensors import tensor, triton_error
from inflight.text.detokenizer import CONTEXT_TOKENS, PROMPT_CONTEXT_TOKENS

UNKNOWN = -1
"""For values that the engine's library does not report: how many of a request's blocks were reused."""


def perf_tensors(event: TokenEvent, timings: RequestTimings) -> list[Any]:
    """Return all performance tensors, each [1, 1].

    Times are nanoseconds of the machine's monotonic clock, 0 if unknown. The last response of an answer has the final
    values; earlier ones have the times known so far.
    """
    speculation = event.speculation or SpeculationStats()
    rate = speculation.accepted / speculation.drafted if speculation.drafted else 0.0
    return [
        tensor("arrival_time_ns", [[timings.arrival_ns]], np.int64),
        tensor("first_scheduled_time_ns", [[timings.admitted_ns]], np.int64),
        tensor("first_token_time_ns", [[timings.first_token_ns]], np.int64),
        tensor("last_token_time_ns", [[timings.end_ns]], np.int64),
        tensor("kv_cache_alloc_total_blocks", [[event.kv_blocks]], np.int32),
        tensor("kv_cache_alloc_new_blocks", [[UNKNOWN]], np.int32),
        tensor("kv_cache_reused_blocks", [[UNKNOWN]], np.int32),
        tensor("acceptance_rate", [[rate]], np.float32),
        tensor("total_accepted_draft_tokens", [[speculation.accepted]], np.int32),
        tensor("total_draft_tokens", [[speculation.drafted]], np.int32),
    ]


PADDING = -1
"""Follows the token ids of a sequence that is shorter than others."""


class Responder:
    """Sends the responses to one request with `answers` answers: the end of the last one is its final response."""

    def __init__(self, sender: Any, answers: int, outputs: frozenset[str] = frozenset()) -> None:
        """`outputs` are those that the request names; each tensor that is not built saves time."""
        self.outputs = outputs
        self._sender = sender
        self._open_answers = answers
        self._lock = threading.Lock()

    def send(self, tensors: list[Any], last: bool) -> None:
        """Send a response; `last` says that it ends one of the answers."""
        with self._lock:
            if self._open_answers <= 0:
                return
            self._open_answers -= last
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if not self._open_answers else 0
            self._sender.send(pb_utils.InferenceResponse(tensors), flags=final)

    def fail(self, message: str, code: str) -> None:
        """End the whole request with an error; later events of its other answers are dropped."""
        with self._lock:
            if self._open_answers <= 0:
                return
            self._open_answers = 0
            response = pb_utils.InferenceResponse(output_tensors=[], error=triton_error(message, code))
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_disconnected(self) -> bool:
        """Ask Triton whether the client disconnected, which it knows of requests sent to this model directly.

        Never ask after the final response, or while it is sent: Triton frees the request with it, and the query crashes
        the whole server.
        """
        with self._lock:
            return self._open_answers > 0 and bool(self._sender.is_cancelled())


class TokenAnswer:
    """One answer to one prompt: sends a response for each event when streaming, else a single one at the end.

    A streamed response has the new tokens and, for postprocessing, their `chunk_header`. The single response has the
    prompt's tokens before the answer's, unless they are excluded (as upstream does). `index_tensors` distinguish the
    answer from others to the same request; `special_token_ids` are tokens without text.
    """

    def __init__(
        self,
        responder: Responder,
        request: GenerationRequest,
        options: ResponseOptions,
        index_tensors: list[Any],
        key: int,
        special_token_ids: frozenset[int],
    ) -> None:
        self.responder = responder
        self._special_token_ids = special_token_ids
        self.key = key
        """The stream key, from preprocessing; 0 if the request came to this model directly."""
        self.handle = 0
        self.disconnected = False
        self._request = request
        self._options = options
        self._index_tensors = index_tensors
        continues = options.streaming or options.exclude_input
        self._prompt: tuple[int, ...] = () if continues else request.prompt_ids
        self._tokens: list[int] = list(self._prompt)
        self._context: list[int] = []
        """The tokens before the next chunk, from the prompt's last ones on: the text is that of a continuation."""
        if continues:
            self._add_context(request.prompt_ids[-PROMPT_CONTEXT_TOKENS:])
        self._log_probs: list[float] = []
        self._prompt_log_probs: tuple[float, ...] = ()
        self._cumulative = 0.0
        self._output_tokens = 0
        self._responses = 0
        self._timings = RequestTimings(arrival_ns=time.monotonic_ns())

    @property
    def acknowledged(self) -> bool:
        """Return whether postprocessing acknowledges the chunks, which detects disconnects behind an ensemble."""
        return bool(self.key) and self._options.streaming

    def is_disconnected(self) -> bool:
        """Ask Triton; a request from another model is never disconnected here, since that model checks its clients."""
        return not self.key and self.responder.is_disconnected()

    def push(self, event: TokenEvent, chunk_key: int, following: int) -> None:
        """Process an event that is not the last one, and send it when streaming."""
        self.count(event)
        if self._options.streaming:
            self._responses += 1
            self.responder.send(self._chunk(event, ChunkHeader(chunk_key, following)), last=False)
        else:
            self._tokens += event.token_ids
            self._log_probs += event.log_probs
            self._prompt_log_probs = self._prompt_log_probs or event.prompt_log_probs

    def count(self, event: TokenEvent) -> None:
        """Count an event's tokens; called directly for an event whose tokens use the chunk channel."""
        self._output_tokens += len(event.token_ids)
        for log_prob in event.log_probs:  # one by one: the sum must not depend on how tokens share events
            self._cumulative += log_prob
        self._timings = event.timings or self._timings

    def finish(self, event: TokenEvent) -> None:
        """Process the last event and end the answer."""
        self.count(event)
        if event.error is not None:
            self.responder.fail(*event.error)
        elif event.finish_reason is FinishReason.CANCELLED and self.disconnected:
            self.responder.fail("the request was cancelled", "cancelled")
        else:
            tensors = (
                self._beams(event)
                if event.beams
                else self._chunk(
                    self._with_earlier_tokens(event), ChunkHeader(0, dropped_characters=event.dropped_characters)
                )
            )
            if event.dropped_characters and "dropped_characters" in self.responder.outputs:
                tensors.append(tensor("dropped_characters", [[event.dropped_characters]], np.int32))
            self.responder.send([*tensors, *self._summary(event)], last=True)

    def _with_earlier_tokens(self, event: TokenEvent) -> TokenEvent:
        """Return the event with all earlier tokens, unless those were streamed."""
        if self._options.streaming:
            return event
        token_ids = (*self._tokens, *event.token_ids)
        return event._replace(
            token_ids=token_ids,
            log_probs=(*self._log_probs, *event.log_probs),
            prompt_log_probs=self._prompt_log_probs or event.prompt_log_probs,
        )

    def _add_context(self, token_ids: Sequence[int]) -> None:
        spelled = [token_id for token_id in token_ids if token_id not in self._special_token_ids]
        self._context = [*self._context, *spelled][-CONTEXT_TOKENS:]

    def _chunk(self, event: TokenEvent, context: ChunkHeader) -> list[Any]:
        token_ids, outputs = event.token_ids, self.responder.outputs
        tensors = [tensor("output_ids", [[token_ids]], np.int32)]
        if "sequence_length" in outputs:
            tensors.append(tensor("sequence_length", [[len(token_ids)]], np.int32))
        tensors += self._index_tensors
        if self.key:
            header = context._replace(context_ids=self._context).to_tensor()
            tensors.append(pb_utils.Tensor("chunk_header", header))
        if self._options.log_probs:
            tensors.append(tensor("output_log_probs", [[event.log_probs]], np.float32))
            tensors.append(tensor("cum_log_probs", [[self._cumulative]], np.float32))
        tops = self._options.top_log_probs
        if tops:
            tensors += _top_tensors("top", event.log_probs, tops)
        if event.prompt_log_probs:
            tensors.append(tensor("prompt_log_probs", [event.prompt_log_probs], np.float32))
            if tops:
                tensors += _top_tensors("prompt_top", event.prompt_log_probs, tops)
        if self._options.token_ids:
            tensors.append(tensor("token_ids", [[token_ids[len(self._prompt) :]]], np.int32))
        if self._options.perf_metrics:
            tensors += perf_tensors(event, self._timings)
        if self._options.streaming:
            self._add_context(token_ids)
        return tensors

    def _beams(self, event: TokenEvent) -> list[Any]:
        """Return all beams in one response, as [1, beams, longest], shorter ones padded with -1."""
        sequences = [(*self._prompt, *beam.token_ids) for beam in event.beams]
        tensors = [
            tensor("output_ids", [padded(sequences, PADDING)], np.int32),
            tensor("sequence_length", [[len(sequence) for sequence in sequences]], np.int32),
            *self._index_tensors,
        ]
        if self.key:
            tensors.append(pb_utils.Tensor("chunk_header", ChunkHeader(0).to_tensor()))
        if self._options.log_probs:
            log_probs = padded([beam.log_probs for beam in event.beams], 0.0)
            tensors.append(tensor("output_log_probs", [log_probs], np.float32))
            tensors.append(tensor("cum_log_probs", [[beam.cumulative_log_prob for beam in event.beams]], np.float32))
        if self._options.token_ids:
            own = padded([beam.token_ids for beam in event.beams], PADDING)
            tensors.append(tensor("token_ids", [own], np.int32))
        if self._options.perf_metrics:
            tensors += perf_tensors(event, self._timings)
        self._output_tokens = len(_longest(event.beams).token_ids)
        return tensors

    def _summary(self, event: TokenEvent) -> list[Any]:
        reason = event.finish_reason.value if event.finish_reason else ""
        cached = (
            () if event.cached_tokens is None else (tensor("num_cached_tokens", [[event.cached_tokens]], np.int32),)
        )
        return [
            *cached,
            pb_utils.Tensor("finish_reason", np.array([[reason.encode()]], dtype=np.object_)),
            tensor("num_input_tokens", [[len(self._request.prompt_ids)]], np.int32),
            tensor("num_output_tokens", [[self._output_tokens]], np.int32),
            tensor("num_responses", [[self._responses + 1]], np.int32),
        ]


def _top_tensors(name: str, log_probs: Sequence[float], most: int) -> list[Any]:
    """Return ids and log probabilities [1, tokens, likeliest]; a token without them has -1 and NaN."""
    filling = ((PADDING, math.nan),) * most
    rows = [(*(each.top if isinstance(each, LogProb) else ()), *filling)[:most] for each in log_probs]
    pairs = np.array(rows, np.float64).reshape(1, len(rows), most, 2)
    return [
        tensor(f"{name}_token_ids", pairs[..., 0], np.int32),
        tensor(f"{name}_log_probs", pairs[..., 1], np.float32),
    ]


def _longest(beams: tuple[Beam, ...]) -> Beam:
    return max(beams, key=lambda beam: len(beam.token_ids))


def padded(rows: list[tuple[Any, ...]], padding: float) -> list[list[Any]]:
    """Return rows of the length of the longest."""
    longest = max(map(len, rows), default=0)
    return [[*row, *[padding] * (longest - len(row))] for row in rows]

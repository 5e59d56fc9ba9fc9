"""Answers of `tensorrt_llm_bls`: converts tokens and tensors of the engine's model to Triton responses with text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import Beam, FinishReason, RequestTimings, TokenEvent
from inflight.runtime.streams.chunk_header import ChunkHeader
from inflight.runtime.text.text_stream import TextDecoderFactory, TextDelta
from inflight.runtime.triton.bls.request import EXTRAS, TextRequest
from inflight.runtime.triton.perf_metrics import PERF_TENSORS, perf_tensors
from inflight.runtime.triton.response import PADDING, Responder, padded
from inflight.runtime.triton.tensors import tensor

Tensors = Mapping[str, Any]
"""The arrays of a response, by name."""


class TextAnswer:
    """One answer to one prompt: sends a response for each piece of text when streaming, else a single one at the end.

    `key` is its stream key. Not thread-safe: one thread makes all calls.
    """

    def __init__(
        self,
        responder: Responder,
        request: TextRequest,
        decoders: TextDecoderFactory,
        index_tensors: list[Any],
        key: int,
        limits: tuple[int, int],
    ) -> None:
        """`index_tensors` distinguish it from other answers; `limits` are its prompt's tokens and `max_tokens`."""
        self.responder = responder
        self.key = key
        self.handle = 0
        """The key once the engine has the request, which can be cancelled from then on; 0 before."""
        self.disconnected = False
        self.position = 0
        """How many of its tokens have come through the chunk channel."""
        self.closed = False
        """Whether its last response has been sent."""
        self.stopped = False
        """Whether a stop word was found, after which the engine need not continue."""
        self.stop_requested = False
        """Whether the request was stopped by its id, which third-party engines don't report as a reason."""
        self._request = request
        self._decoders = decoders
        self._text = decoders.create()
        self._index_tensors = index_tensors
        self._input_tokens, self._max_tokens = limits
        self._output_tokens = 0
        self._responses = 0
        self._cumulative = 0.0
        self._timings = RequestTimings(arrival_ns=0)
        self._extras: dict[str, Any] = {}
        self._stop_delta: TextDelta | None = None

    def is_disconnected(self) -> bool:
        return self.responder.is_disconnected()

    def push(
        self, token_ids: Sequence[int], log_probs: Sequence[float] = (), timings: RequestTimings | None = None
    ) -> None:
        """Add tokens that are not the last ones, unless the answer is stopped. The first call includes timings."""
        self._timings = timings or self._timings
        if self.closed or self.stopped:
            return
        piece = self._text.feed(token_ids, log_probs)
        if piece.stopped:
            self._stop(piece)
        elif self._request.streaming and piece.token_ids:
            self._responses += 1
            self.responder.send([*self._text_tensors(piece), *self._perf_so_far()], last=False)

    def keep_extras(self, tensors: Tensors) -> None:
        """Keep the tensors to send with the last response."""
        self._extras |= {name: tensors[name] for name in EXTRAS if name in tensors}

    def finish(self, tensors: Tensors) -> None:
        """Add the last tokens and their tensors, and end the answer."""
        if self.closed:
            return
        self.keep_extras(tensors)
        beams = _beams(tensors)
        reason = _string(tensors.get("finish_reason"))
        if self.disconnected:
            self.fail("the request was cancelled", "cancelled")
        elif len(beams) > 1:
            self._finish_beams(beams, reason)
        else:
            last = beams[0] if beams else Beam(())
            piece = self._stop_delta or self._text.feed(last.token_ids, last.log_probs, True, _dropped(tensors))
            self._end(piece, reason)

    def fail(self, message: str, code: str) -> None:
        self.closed = True
        self.responder.fail(message, code)

    def _stop(self, piece: TextDelta) -> None:
        """End at a stop word: at once, unless the request wants values that come with the engine's last response."""
        self.stopped = True
        if self._request.perf_metrics:
            self._stop_delta = piece
        else:
            self._end(piece, FinishReason.STOP_WORD.value)

    def _end(self, piece: TextDelta, reason: str) -> None:
        said = self._text_tensors(piece)
        if piece.stopped:
            reason = FinishReason.STOP_WORD.value
        elif not reason:
            early = FinishReason.CANCELLED if self.stop_requested else FinishReason.STOP
            reason = (FinishReason.LENGTH if self._output_tokens >= self._max_tokens else early).value
        self._send_last(said, reason)

    def _finish_beams(self, beams: list[Beam], reason: str) -> None:
        found = [self._decoders.decode_beam(beam) for beam in beams]
        if found[0][1] is not beams[0]:
            reason = FinishReason.STOP_WORD.value
        self._output_tokens = max(len(beam.token_ids) for _, beam in found)
        tensors = [_text_tensor([text for text, _ in found]), *self._index_tensors]
        if self._request.token_ids:
            own = padded([beam.token_ids for _, beam in found], PADDING)
            tensors.append(tensor("token_ids", [own], np.int32))
        if self._request.log_probs:
            rows = padded([beam.log_probs for _, beam in found], 0.0)
            tensors.append(tensor("output_log_probs", [rows], np.float32))
            tensors.append(tensor("cum_log_probs", [[beam.cumulative_log_prob for _, beam in found]], np.float32))
        self._send_last(tensors, reason)

    def _text_tensors(self, piece: TextDelta) -> list[Any]:
        """Return the tensors of a piece of text, and count its tokens."""
        self._output_tokens += len(piece.token_ids)
        tensors = [_text_tensor([piece.text]), *self._index_tensors]
        if self._request.token_ids:
            tensors.append(tensor("token_ids", [[piece.token_ids]], np.int32))
        if self._request.log_probs:
            for log_prob in piece.log_probs:  # one by one: the sum must not depend on how tokens share responses
                self._cumulative += log_prob
            tensors.append(tensor("output_log_probs", [[piece.log_probs]], np.float32))
            tensors.append(tensor("cum_log_probs", [[self._cumulative]], np.float32))
        return tensors

    def _perf_so_far(self) -> list[Any]:
        """Return the performance tensors before the last response, which clients expect in each response."""
        if not self._request.perf_metrics:
            return []
        tensors = [pb_utils.Tensor(name, self._extras[name]) for name in PERF_TENSORS if name in self._extras]
        return tensors or perf_tensors(TokenEvent(0, ()), self._timings)

    def _send_last(self, tensors: list[Any], reason: str) -> None:
        self.closed = True
        summary = [
            pb_utils.Tensor("finish_reason", np.array([[reason.encode()]], dtype=np.object_)),
            tensor("num_input_tokens", [[self._input_tokens]], np.int32),
            tensor("num_output_tokens", [[self._output_tokens]], np.int32),
            tensor("num_responses", [[self._responses + 1]], np.int32),
        ]
        extras = [pb_utils.Tensor(name, array) for name, array in self._extras.items()]
        self.responder.send([*tensors, *extras, *summary], last=True)


def tokens_of(tensors: Tensors) -> tuple[Sequence[int], Sequence[float]]:
    """Return the token ids and log probabilities of a streamed response, which has one sequence."""
    (beam,) = _beams(tensors)
    return beam.token_ids, beam.log_probs


def _beams(tensors: Tensors) -> list[Beam]:
    """Return the sequences of a response, cut to their lengths."""
    if "output_ids" not in tensors:
        return []
    lengths = tensors["sequence_length"][0].tolist()
    rows = tensors["output_ids"][0].tolist()
    log_probs = tensors["output_log_probs"][0].tolist() if "output_log_probs" in tensors else [()] * len(rows)
    sums = tensors["cum_log_probs"][0].tolist() if "cum_log_probs" in tensors else [0.0] * len(rows)
    return [
        Beam(tuple(ids[:length]), tuple(probs[:length]), total)
        for ids, length, probs, total in zip(rows, lengths, log_probs, sums, strict=True)
    ]


def _dropped(tensors: Tensors) -> int:
    """Return how many characters at the end belong to a stop word, if the engine's model sends the number."""
    return ChunkHeader.from_row(tensors["chunk_header"][0]).dropped_characters if "chunk_header" in tensors else 0


def _text_tensor(texts: Sequence[str]) -> Any:
    """Return a tensor with one dimension, like postprocessing."""
    return pb_utils.Tensor("text_output", np.array([text.encode() for text in texts], dtype=np.object_))


def _string(array: Any) -> str:
    """Return the string in an optional tensor; "" if it is absent."""
    return "" if array is None else array.item().decode()

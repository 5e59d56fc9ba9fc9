"""One request's answer: engine events in, Triton responses out."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.detokenizer import CONTEXT_TOKENS
from inflight.runtime.messages import FinishReason, GenerationRequest, TokenEvent
from inflight.runtime.triton_tensors import triton_error


class Answer:
    """Sends one response an event when streaming, else a single one at the end.

    A streamed response carries the new tokens, the ones before them (`context_ids`), and the key by which
    postprocessing acknowledges it; the last one has key 0, for nobody waits for it and there is no text to hold back.
    The single response has the prompt's tokens before the answer's, unless `exclude_input` (upstream's manner).
    """

    def __init__(self, sender: Any, request: GenerationRequest, streaming: bool, exclude_input: bool) -> None:
        self._sender = sender
        self._prompt_tokens = len(request.prompt_ids)
        self._streaming = streaming
        self._tokens: list[int] = [] if streaming or exclude_input else list(request.prompt_ids)
        self._output_tokens = 0

    def push(self, event: TokenEvent, chunk_key: int) -> None:
        """Send what the event brings; the last event ends the answer."""
        self._output_tokens += len(event.token_ids)
        if event.finish_reason is None:
            if self._streaming:
                self._sender.send(pb_utils.InferenceResponse(self._chunk(event.token_ids, chunk_key)))
            else:
                self._tokens += event.token_ids
        elif event.error is not None:
            self.fail(*event.error)
        elif event.finish_reason is FinishReason.CANCELLED:
            self.fail("the request was cancelled", "cancelled")
        else:
            self._finish(event.token_ids, event.finish_reason)

    def fail(self, message: str, code: str) -> None:
        fail(self._sender, message, code)

    def client_has_gone(self) -> bool:
        """Asks Triton, which knows it of requests that came to this model directly."""
        return bool(self._sender.is_cancelled())

    def _finish(self, token_ids: tuple[int, ...], reason: FinishReason) -> None:
        if not self._streaming:
            token_ids = (*self._tokens, *token_ids)
        tensors = [
            *self._chunk(token_ids, 0),
            pb_utils.Tensor("finish_reason", np.array([[reason.value.encode()]], dtype=np.object_)),
            pb_utils.Tensor("num_input_tokens", np.array([[self._prompt_tokens]], dtype=np.int32)),
            pb_utils.Tensor("num_output_tokens", np.array([[self._output_tokens]], dtype=np.int32)),
        ]
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _chunk(self, token_ids: tuple[int, ...], stream_key: int) -> list[Any]:
        context = self._tokens if self._streaming else []
        tensors = [
            pb_utils.Tensor("output_ids", np.array([[token_ids]], dtype=np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[len(token_ids)]], dtype=np.int32)),
            pb_utils.Tensor("context_ids", np.array([context], dtype=np.int32)),
            pb_utils.Tensor("stream_key", np.array([[stream_key]], dtype=np.uint64)),
        ]
        if self._streaming:
            self._tokens = [*self._tokens, *token_ids][-CONTEXT_TOKENS:]
        return tensors


def fail(sender: Any, message: str, code: str) -> None:
    """End a request with an error."""
    response = pb_utils.InferenceResponse(output_tensors=[], error=triton_error(message, code))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

"""Decodes the responses of TensorRT-LLM's own deployments, which report less than inflight's and in other forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_client.call import Call
from inflight_client.deployments.answer import AnswerDecoder, server_timings
from inflight_client.deployments.stop_text_buffer import StopTextBuffer
from inflight_client.deployments.tensor_names import TIMING_OUTPUTS
from inflight_client.errors import InflightError
from inflight_client.results import UNKNOWN, Delta, LogProb, ServerTimings, Usage
from inflight_client.transport import InferResponse

if TYPE_CHECKING:
    from inflight_client.deployments.deployment import Deployment

_NONE = "None"
"""The LLM API model's text for a missing value: Python's None."""


class UpstreamAnswerDecoder(AnswerDecoder):
    """Decodes the responses of NVIDIA/TensorRT-LLM 1.2 and earlier.

    - `ensemble` and `tensorrt_llm_bls` stream deltas, or with `accumulate_tokens` the whole text so far. They do not
      report a finish reason; Triton marks the last response. Stop words stay in the text.
    - `llmapi` streams the whole text so far, with the finish reason None until the last response.
    - `num_output_tokens` counts each response's tokens.

    The client also finds stop words and cuts the text there, so it ends as on an inflight deployment.
    """

    def __init__(self, deployment: Deployment, call: Call) -> None:
        super().__init__(deployment, call)
        self._llmapi = deployment.kind == "llmapi"
        self._streams = deployment.streams(call)
        whole = self._streams and (self._llmapi or bool(deployment.accumulates))
        stops = tuple(call.sampling.stop)
        self._buffer = StopTextBuffer(stops, whole) if stops or whole else None
        self._reasons = "finish_reason" in deployment.outputs and (
            "return_finish_reason" in deployment.inputs or not self._llmapi
        )
        self._has_text = False
        """Whether a text, possibly empty, has arrived."""
        self._read: int | None = None
        self._written: int | None = None
        self._log_probs: tuple[LogProb, ...] = ()

    def add_response(self, response: InferResponse) -> Delta:
        if self.done:
            return Delta("")  # arrived while the stream was being closed
        if self._ended:
            raise self._damaged("data arrived after its end")
        self._responses += 1
        text = self._text(response, response.final is True)
        if text is not None:
            if self._has_text and not self._streams:
                raise self._damaged("two texts arrived where one was expected")
            self._has_text = True
        reason = self._reason(response)
        final = reason is not None or (response.final is True and not self._reasons)
        self._add_counts(response)
        token_ids = self._read_token_ids(response) if text is not None else None
        log_probs = self._new_log_probs(response)
        self._read_metrics(response)
        if final:
            return self._last_delta(text, reason or UNKNOWN, token_ids, log_probs)
        if text is None:
            return Delta("")
        certain = text if self._buffer is None else self._buffer.feed(text)
        if self._buffer is not None and self._buffer.stopped:
            self._ended = self.done = True
            return Delta(certain, "stop_word", self._total_usage(), token_ids, log_probs)
        return Delta(certain, None, None, token_ids, log_probs)

    def finish(self) -> Delta | None:
        """Treat the end of the responses as the end of the answer if the deployment reports no finish reason."""
        if self._ended or self._reasons or not self._responses:
            return super().finish()
        return self._last_delta(None, UNKNOWN, None, None)

    def _last_delta(
        self,
        text: str | None,
        reason: str,
        token_ids: tuple[int, ...] | None,
        log_probs: tuple[LogProb, ...] | None,
    ) -> Delta:
        if reason == UNKNOWN and not self._has_text:
            raise self._damaged("it has no text")
        self._ended = True
        reason = self._checked_reason(reason)
        if self._buffer is None:
            rest = text or ""
        else:
            rest = self._buffer.flush(text)
            reason = "stop_word" if self._buffer.stopped else reason
        return Delta(rest, reason, self._total_usage(), token_ids, log_probs)

    def _reason(self, response: InferResponse) -> str | None:
        """Return the finish reason; None if the answer continues or the deployment reports none."""
        if not self._reasons:
            return None
        reason = response.text("finish_reason")
        if reason is None or reason in (_NONE, ""):
            return None
        if reason == "stop" and response.text("stop_reason") in self._call.sampling.stop:
            return "stop_word"
        return reason

    def _add_counts(self, response: InferResponse) -> None:
        read, written = response.integer("num_input_tokens"), response.integer("num_output_tokens")
        self._read = self._read if read is None else read
        if written is not None:
            self._written = (self._written or 0) + written

    def _total_usage(self) -> Usage | None:
        return None if self._read is None or self._written is None else Usage(self._read, self._written)

    def _new_log_probs(self, response: InferResponse) -> tuple[LogProb, ...] | None:
        """Return those of this response's tokens; some versions send those of all tokens so far."""
        if not self._call.return_log_probs:
            return None
        values = response.numbers("output_log_probs")
        if values is None:
            return None
        received = tuple(map(LogProb, values))
        before = self._log_probs
        if before and len(received) > len(before) and received[: len(before)] == before:
            self._log_probs = received
            return received[len(before) :]
        self._log_probs = received if not before else before + received
        return received

    def _timings(self, response: InferResponse) -> ServerTimings | None:
        if not self._llmapi:
            return super()._timings(response)
        # The LLM API's model sends its numbers as text, whatever its metadata says.
        return server_timings([_parse_int(response.text(name)) for name in TIMING_OUTPUTS])


def _parse_int(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise InflightError(f"a timestamp is {text!r:.42}, which is not a number", "answer_damaged") from None

"""Reads an answer of the LLM API while it grows."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from inflight.runtime.engine.interface import StepOutput
from inflight.runtime.engine.request_queue import error_from_exception
from inflight.runtime.messages import Beam, FinishReason, GenerationRequest, LogProb

FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "timeout": FinishReason.DEADLINE}
"""The library's finish reasons. `cancelled` is missing: cancelled answers are not read."""


class OutputReader:
    """Finds what is new in a RequestOutput.

    `token_ids` and `logprobs` of its outputs are cumulative. They may include the end token, which is removed here.
    """

    def __init__(self, handle: int, request: GenerationRequest, end_ids: tuple[int, ...]) -> None:
        self._handle = handle
        self._request = request
        self._end_ids = frozenset(end_ids)
        self._tokens_read = 0

    def read(self, result: Any) -> StepOutput | None:
        """Read the result after a step; return None if it has nothing new."""
        if message := getattr(result, "error", None):  # 1.3 and later
            return self._failed(str(message))
        try:
            return self._beams(result) if self._request.sampling.beam_width > 1 else self._tokens(result)
        except _MissingOutputError as error:
            return self._failed(str(error))

    def _failed(self, message: str) -> StepOutput:
        return StepOutput(self._handle, (), FinishReason.ERROR, error=error_from_exception(RuntimeError(message)))

    def _tokens(self, result: Any) -> StepOutput | None:
        output = result.outputs[0]
        seen, reason = self._tokens_read, self._reason(result, output)
        token_ids = tuple(output.token_ids[seen:])
        self._tokens_read += len(token_ids)
        token_ids = self._without_end(token_ids, reason)
        log_probs = self._log_probs(output, seen, token_ids)
        if reason is FinishReason.ERROR:
            return self._failed(f"its answer ended with {output.finish_reason!r}")
        if not token_ids and reason is None:
            return None
        return StepOutput(self._handle, token_ids, reason, log_probs)

    def _beams(self, result: Any) -> StepOutput | None:
        """Return all beams at once, the best first, in the library's order, with the finish reason of the best."""
        if not result.finished:
            return None
        reasons = [self._reason(result, output) for output in result.outputs]
        if FinishReason.ERROR in reasons:
            return self._failed(f"a beam ended with {[output.finish_reason for output in result.outputs]}")
        beams = tuple(self._beam(output, reason) for output, reason in zip(result.outputs, reasons, strict=True))
        return StepOutput(self._handle, (), reasons[0], beams=beams)

    def _beam(self, output: Any, reason: FinishReason | None) -> Beam:
        token_ids = tuple(output.token_ids)
        if reason is FinishReason.STOP:  # a finished beam may be padded to the length of the others
            token_ids = tuple(takewhile(lambda token_id: token_id not in self._end_ids, token_ids))
        log_probs = self._log_probs(output, 0, token_ids)
        total = output.cumulative_logprob
        return Beam(token_ids, log_probs, sum(log_probs) if total is None else total)

    def _reason(self, result: Any, output: Any) -> FinishReason | None:
        """Return the finish reason; ERROR for one that has no counterpart here."""
        return FINISH_REASONS.get(output.finish_reason, FinishReason.ERROR) if result.finished else None

    def _without_end(self, token_ids: tuple[int, ...], reason: FinishReason | None) -> tuple[int, ...]:
        ends = reason is FinishReason.STOP and token_ids and token_ids[-1] in self._end_ids
        return token_ids[:-1] if ends else token_ids

    def _log_probs(self, output: Any, seen: int, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        """Return the log probabilities of these tokens, which begin at position `seen` of the answer.

        For each token the library returns a number, or the likeliest tokens with their numbers.
        """
        if not self._request.log_probs:
            return ()
        log_probs = (output.logprobs or [])[seen : seen + len(token_ids)]
        if len(log_probs) < len(token_ids):
            raise _MissingOutputError("it returned fewer log probabilities than tokens")
        most = self._request.top_log_probs
        return tuple(_log_prob(entry, token_id, most) for entry, token_id in zip(log_probs, token_ids, strict=True))


class _MissingOutputError(Exception):
    """The library's output lacks requested values."""


def _log_prob(entry: Any, token_id: int, most: int) -> LogProb:
    if not isinstance(entry, dict):
        return LogProb(float(entry))
    if token_id not in entry:
        raise _MissingOutputError(f"it returned no log probability for token {token_id}")
    log_probs: Any = {each: getattr(value, "logprob", value) for each, value in entry.items()}
    values = {int(each): float(value) for each, value in log_probs.items()}
    likeliest = sorted(values.items(), key=lambda item: -item[1])
    return LogProb(values[token_id], tuple(likeliest[:most]))

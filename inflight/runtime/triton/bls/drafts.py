"""Requests to `tensorrt_llm_bls` with a draft model: one answer, generated in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.engine.speculation import VerifiedTokens, speculate
from inflight.runtime.messages import FinishReason, RequestError
from inflight.runtime.triton.bls.answer import Tensors, tokens_of
from inflight.runtime.triton.bls.call import BlsCall
from inflight.runtime.triton.bls.request import TextRequest
from inflight.runtime.triton.perf_metrics import PERF_TENSORS

Infer = Callable[[str, BlsCall, list[Any], list[str]], Tensors]
"""Calls a model (by name) for a request, with these inputs and requested outputs, and waits for its one response."""

_HISTORY_INPUTS = ("presence_penalty", "frequency_penalty", "guided_decoding_guide_type", "guided_decoding_guide")
"""Inputs whose effect depends on the answer so far, which each round sends as part of the prompt."""
_FIRST_ROUND_TENSORS = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns")
_MILLISECOND_NS = 1_000_000


def check_drafts(request: TextRequest, draft_model: str) -> None:
    """Raise RequestError for inputs that exclude `num_draft_tokens`, or if there is no draft model."""
    asked = f"num_draft_tokens is {request.num_draft_tokens}"
    if not draft_model:
        raise RequestError(
            f"{asked}, and this deployment has no draft model; start the server with --draft-engine or --prompt-lookup,"
            " or leave it out",
            "invalid_parameter",
        )
    several = {
        "stream": request.streaming,
        "beam_width above 1": request.beams > 1,
        "num_return_sequences above 1": request.sequences > 1,
        "several prompts": request.prompts > 1,
        "return_context_logits": request.inputs.scalar("return_context_logits", default=False),
        "return_generation_logits": request.inputs.scalar("return_generation_logits", default=False),
    }
    several |= {name: np.any(request.inputs.array(name)) for name in _HISTORY_INPUTS}
    for name, used in several.items():
        if used:
            raise RequestError(
                f"{asked}, which can't be combined with {name}; leave one of them out", "invalid_parameter"
            )


class DraftedAnswer:
    """Generates the one answer of a call; `infer` calls models."""

    def __init__(self, call: BlsCall, infer: Infer, model: str, draft_model: str, inflight_tensors: bool) -> None:
        self._call = call
        self._infer = infer
        self._model = model
        self._draft_model = draft_model
        self._inflight_tensors = inflight_tensors
        self._answer = call.answers[0]
        self._prompt = call.prompt_ids(0)
        self._started_ns = time.monotonic_ns()
        self._drafted = 0
        self._accepted = 0
        self._perf: dict[str, Any] = {}

    def generate(self) -> Tensors:
        """Generate the answer; return the tensors of its last response except the text."""
        request = self._call.request
        reason = speculate(
            self._draft, self._verify, self._on_verified, request.num_draft_tokens, request.max_tokens(0)
        )
        reason_tensor = np.array([[reason.encode()]], dtype=np.object_)
        if not request.perf_metrics:
            return {"finish_reason": reason_tensor}
        counts = {"total_draft_tokens": self._drafted, "total_accepted_draft_tokens": self._accepted}
        rate = self._accepted / self._drafted if self._drafted else 0.0
        return {
            **self._perf,
            **{name: np.array([[count]], np.int32) for name, count in counts.items()},
            "acceptance_rate": np.array([[rate]], np.float32),
            "finish_reason": reason_tensor,
        }

    def _draft(self, answer: Sequence[int], count: int) -> Sequence[int]:
        inputs = self._inputs(answer, request_output_len=[[count]])
        token_ids, _ = tokens_of(self._infer(self._draft_model, self._call, inputs, ["output_ids", "sequence_length"]))
        return token_ids

    def _verify(self, answer: Sequence[int], guess: Sequence[int]) -> VerifiedTokens:
        if self._answer.disconnected:
            return VerifiedTokens((), reason=FinishReason.CANCELLED.value)
        inputs = self._inputs(answer, request_output_len=[[len(guess) + 1]])
        if guess:
            inputs.append(pb_utils.Tensor("draft_input_ids", np.array([guess], np.int32)))
        outputs = self._call.request.engine_outputs(self._inflight_tensors)
        tensors = self._infer(self._model, self._call, inputs, outputs)
        token_ids, log_probs = tokens_of(tensors)
        self._drafted += len(guess)
        self._accepted += _common_prefix(token_ids, guess)
        self._perf = {name: tensors[name] for name in PERF_TENSORS if name in tensors} | {
            name: self._perf[name] for name in _FIRST_ROUND_TENSORS if name in self._perf
        }
        reason = tensors["finish_reason"].item().decode() if "finish_reason" in tensors else ""
        return VerifiedTokens(token_ids, log_probs, reason)

    def _on_verified(self, verified: VerifiedTokens) -> bool:
        self._answer.push(verified.token_ids, verified.log_probs)
        return self._answer.stopped or self._call.stop_requested

    def _inputs(self, answer: Sequence[int], **values: Any) -> list[Any]:
        """Return the request's inputs with the answer so far appended to the prompt."""
        values |= {"input_ids": [[*self._prompt, *answer]], "input_lengths": [[len(self._prompt) + len(answer)]]}
        least = self._call.request.min_tokens(0)
        if least:
            values["min_tokens"] = [[max(0, least - len(answer))]]
        deadline_ms = self._call.request.inputs.scalar("deadline_ms")
        if deadline_ms is not None:
            # An expired deadline becomes one millisecond: the engine then reports it.
            spent_ms = (time.monotonic_ns() - self._started_ns) // _MILLISECOND_NS
            values["deadline_ms"] = [[deadline_ms if deadline_ms < 1 else max(1, deadline_ms - spent_ms)]]
        changed: Mapping[str, Any] = {name: np.array(value, np.int32) for name, value in values.items()}
        return self._call.request.engine_inputs(self._call.prepared, False, self._inflight_tensors, changed)


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    for count, (mine, yours) in enumerate(zip(one, other, strict=False)):
        if mine != yours:
            return count
    return min(len(one), len(other))

"""A stand-in for an answer of TensorRT-LLM's executor: the prompt's tokens over and over, sent as upstream does."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

LOG_PROB = -0.5
CLOCKS = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
COUNTS = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")
DRAFTS = ("total_accepted_draft_tokens", "total_draft_tokens")


def tensor(name: str, values: Any, dtype: Any) -> Any:
    return pb_utils.Tensor(name, np.array(values, dtype=dtype))


class SequenceAnswer:
    """One sequence of one prompt of a request; all its beams say the same."""

    def __init__(
        self,
        inputs: dict[str, Any],
        row: int,
        rows: int,
        sequence: int,
        wanted: set[str],
        parameters: dict[str, Any],
        request_id: str,
    ) -> None:
        if "input_ids" not in inputs:
            raise ValueError("input_ids or encoder_input_features is not present in the request.")
        self.request_id = request_id
        self.sender: Any = None
        self.pending: list[SequenceAnswer] = []
        self.cancelled = self.ended = False
        self.streaming = self._flag(inputs, "streaming", False)
        self._prompt = inputs["input_ids"].ravel()[: int(inputs["input_lengths"].item())].tolist()
        self._limit = int(inputs["request_output_len"].item())
        self._end = int(inputs["end_id"].item()) if "end_id" in inputs else -1
        self._stops = _words(inputs.get("stop_words_list"))
        self._beams = int(inputs["beam_width"].item()) if "beam_width" in inputs else 1
        if self._beams > parameters["max_beam_width"]:
            raise ValueError(f"Requested beam width {self._beams} is larger than {parameters['max_beam_width']}")
        excluded = self._flag(inputs, "exclude_input_in_output", parameters["exclude_input_in_output"])
        self._before = [] if self.streaming or excluded else self._prompt
        self._tags = {"batch_index": row} if rows > 1 else {}
        if int(inputs["num_return_sequences"].item() if "num_return_sequences" in inputs else 1) > 1:
            self._tags["sequence_index"] = sequence
        self._asked = {name: self._flag(inputs, name, False) for name in inputs if name.startswith("return_")}
        self._wanted = wanted
        self._made: list[int] = []
        self._sent = 0
        self._moments = [time.monotonic_ns()]

    @staticmethod
    def _flag(inputs: dict[str, Any], name: str, default: bool) -> bool:
        return bool(inputs[name].item()) if name in inputs else default

    def step(self) -> None:
        """Make one more token; the end token is not part of the answer, a stop word is."""
        if self.cancelled:
            self.ended = True
            return
        token = self._prompt[len(self._made) % len(self._prompt)]
        if token == self._end:
            self.ended = True
            return
        self._made.append(token)
        if len(self._moments) == 1:
            self._moments += [time.monotonic_ns()] * 2
        stopped = any(self._made[-len(word) :] == word for word in self._stops)
        self.ended = stopped or len(self._made) >= self._limit

    def response(self) -> Any:
        """What is new of a stream, or the whole answer behind its prompt."""
        new = self._made[self._sent :] if self.streaming else self._made
        self._sent = len(self._made)
        for name in ("output_ids", "sequence_length"):
            if name not in self._wanted:
                sentence = f"Error encountered while populating response: {name} tensor must be present in list of"
                return pb_utils.InferenceResponse([], pb_utils.TritonError(f"{sentence} output tensors"))
        ids = [*self._before, *new]
        tensors = [
            tensor("output_ids", [[ids] * self._beams], np.int32),
            tensor("sequence_length", [[len(ids)] * self._beams], np.int32),
        ]
        tensors += [tensor(name, [[value]], np.int32) for name, value in self._tags.items() if name in self._wanted]
        if self._asked.get("return_log_probs"):
            each, total = [[[LOG_PROB] * len(new)] * self._beams], [[LOG_PROB * len(self._made)] * self._beams]
            told = {"output_log_probs": each, "cum_log_probs": total}
            tensors += [tensor(name, values, np.float32) for name, values in told.items() if name in self._wanted]
        return pb_utils.InferenceResponse([*tensors, *self._figures(len(ids) * self._beams)])

    def _figures(self, told: int) -> list[Any]:
        """Of the answer, and of this response: `told` is how many ids it has, a prompt's and all beams' among them.

        As fillTritonResponse in model_instance_state.cc has it, both counts come with each response.
        """
        figures: dict[str, tuple[Any, Any]] = {}
        if self._asked.get("return_num_input_tokens"):
            figures["num_input_tokens"] = len(self._prompt), np.int32
        if self._asked.get("return_num_output_tokens"):
            figures["num_output_tokens"] = told, np.int32
        if self.ended and self._asked.get("return_perf_metrics"):
            moments = [*self._moments, *[time.monotonic_ns()] * (4 - len(self._moments))]
            figures |= {name: (moment, np.int64) for name, moment in zip(CLOCKS, moments, strict=True)}
            figures |= dict.fromkeys(COUNTS, (1, np.int32)) | dict.fromkeys(DRAFTS, (0, np.int32))
            figures["acceptance_rate"] = 0.0, np.float32
        return [tensor(name, [[value]], dtype) for name, (value, dtype) in figures.items() if name in self._wanted]


def _words(packed: Any) -> list[list[int]]:
    """The words of a tensor [2, length]: ids in a row, and where each word ends."""
    if packed is None or not packed.size:
        return []
    ids, ends = packed.reshape(2, -1).tolist()
    starts = [0, *ends]
    return [ids[start:end] for start, end in zip(starts, ends, strict=False) if end > 0]

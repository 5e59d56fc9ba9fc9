"""Replays a trace's requests: at its times, with its lengths and its shared prefixes."""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np

from loadtests.errors import LoadError
from loadtests.workloads.scripted_conversation import ClientCancellation, ScriptedConversation, Turn, user
from loadtests.workloads.spec import WorkloadSpec
from loadtests.workloads.text_generator import TextGenerator
from loadtests.workloads.trace_formats import Trace

_BLOCKS_KEPT = 8192


class TraceReplay:
    """A session for each of the trace's requests, `due` at its time; once, or repeatedly.

    `due` is in the trace's own seconds: divide it to replay faster. Equal hash ids are equal texts, so a prefix cache
    has the hits of the recording; tokens without a hash id are unique text. Each round of a repeated trace has
    different texts, and follows the previous one after the trace's mean interval. `spec` scales and limits lengths.
    """

    def __init__(
        self, trace: Trace, spec: WorkloadSpec, texts: TextGenerator, cancellation: ClientCancellation, seed: int
    ) -> None:
        self._trace = trace
        self._spec = spec
        start = spec.trace_start
        self._skipped = int(np.searchsorted(trace.due, start, side="left"))
        if self._skipped == len(trace):
            raise LoadError(
                f"{spec.trace} ends after {trace.due[-1]:g} s, so nothing is left after trace_start {start:g}; reduce "
                f"trace_start",
                "workload_invalid",
            )
        self._rows = len(trace) - self._skipped
        span = float(trace.due[-1] - start)
        self._period = span * self._rows / max(1, self._rows - 1)
        if spec.repeat and trace.due[-1] == trace.due[self._skipped]:
            raise LoadError(f"{spec.trace} can't be repeated: all its requests have the same time", "workload_invalid")
        self._texts = texts
        self._cancellation = cancellation
        self._seed = seed
        self._block = lru_cache(_BLOCKS_KEPT)(self._made_block)

    def session(self, number: int) -> ScriptedConversation | None:
        turn, row = divmod(number, self._rows)
        if turn and not self._spec.repeat:
            return None
        row += self._skipped
        source = random.Random(f"{self._seed}/{number}")
        text = self._text(turn, row, source)
        output_tokens = int(self._trace.output_tokens[row])
        max_tokens = _scaled(output_tokens, self._spec.output_scale, self._spec.max_output_tokens)
        due = float(self._trace.due[row]) - self._spec.trace_start + turn * self._period
        turns = [Turn(user(text), max_tokens, 0.0, self._cancellation.draw(source))]
        return ScriptedConversation(number, turns, due, self._spec.prompt_format == "messages")

    def _text(self, turn: int, row: int, source: random.Random) -> str:
        spec = self._spec
        tokens = _scaled(int(self._trace.input_tokens[row]), spec.input_scale, spec.max_input_tokens)
        block = _scaled(spec.block_tokens, spec.input_scale, None)
        left = max(1, tokens - self._texts.overhead)
        whole = left + self._texts.overhead
        pieces: list[str] = []
        for number in self._trace.hash_ids(row):
            if left <= 0:
                break
            taken = min(left, block)
            pieces.append(self._block(turn, number, taken, not pieces))
            left -= taken
        if left > 0:
            pieces.append(self._texts.piece(left, source, first=not pieces))
        return self._texts.fit(" ".join(pieces), whole, source)

    def _made_block(self, turn: int, number: int, tokens: int, first: bool) -> str:
        return self._texts.piece(tokens, random.Random(f"{self._seed}/block/{turn}/{number}"), first)


def _scaled(tokens: int, scale: float, maximum: int | None) -> int:
    scaled = max(1, round(tokens * scale))
    return scaled if maximum is None else min(scaled, maximum)

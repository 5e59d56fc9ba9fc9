"""Replays a trace's requests: at its times, with its lengths and its shared prefixes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from loadtests.errors import LoadError
from loadtests.workloads.scripted_conversation import ClientCancellation, ScriptedConversation, Turn, user
from loadtests.workloads.text_generator import TextGenerator
from loadtests.workloads.trace_formats import Trace

_BLOCKS_KEPT = 8192


@dataclass(frozen=True)
class TraceFit:
    """How a trace is fitted to a model: lengths and blocks are scaled and limited to a maximum."""

    input_scale: float
    output_scale: float
    max_input: int | None
    max_output: int | None
    block_tokens: int

    def input(self, tokens: int) -> int:
        return _scaled(tokens, self.input_scale, self.max_input)

    def output(self, tokens: int) -> int:
        return _scaled(tokens, self.output_scale, self.max_output)

    @property
    def block(self) -> int:
        return _scaled(self.block_tokens, self.input_scale, None)


class TraceReplay:
    """A session for each of the trace's requests, `due` at its time; once, or repeatedly.

    `due` is in the trace's own seconds: divide it to replay faster. Equal hash ids are equal texts, so a prefix cache
    has the hits of the recording; tokens without a hash id are unique text. Each round of a repeated trace has
    different texts, and follows the previous one after the trace's mean interval.
    """

    def __init__(
        self, trace: Trace, name: str, fit: TraceFit, start: float, repeat: bool, texts: TextGenerator,
        cancellation: ClientCancellation, chat: bool, seed: int,
    ) -> None:  # fmt: skip
        self._trace = trace
        self._fit = fit
        self._skipped = int(np.searchsorted(trace.due, start, side="left"))
        if self._skipped == len(trace):
            raise LoadError(
                f"{name} ends after {trace.due[-1]:g} s, so nothing is left after trace_start {start:g}; reduce "
                f"trace_start",
                "workload_invalid",
            )
        self._start = start
        self._rows = len(trace) - self._skipped
        span = float(trace.due[-1] - start)
        self._period = span * self._rows / max(1, self._rows - 1)
        if repeat and trace.due[-1] == trace.due[self._skipped]:
            raise LoadError(f"{name} can't be repeated: all its requests have the same time", "workload_invalid")
        self._repeat = repeat
        self._texts = texts
        self._cancellation = cancellation
        self._chat = chat
        self._seed = seed
        self._block = lru_cache(_BLOCKS_KEPT)(self._made_block)

    def session(self, number: int) -> ScriptedConversation | None:
        turn, row = divmod(number, self._rows)
        if turn and not self._repeat:
            return None
        row += self._skipped
        source = random.Random(f"{self._seed}/{number}")
        text = self._text(turn, row, source)
        most = self._fit.output(int(self._trace.output_tokens[row]))
        due = float(self._trace.due[row]) - self._start + turn * self._period
        return ScriptedConversation(
            number, [Turn(user(text), most, 0.0, self._cancellation.draw(source))], due, self._chat
        )

    def _text(self, turn: int, row: int, source: random.Random) -> str:
        tokens = self._fit.input(int(self._trace.input_tokens[row]))
        left = max(1, tokens - self._texts.overhead)
        whole = left + self._texts.overhead
        pieces: list[str] = []
        for number in self._trace.hash_ids(row):
            if left <= 0:
                break
            taken = min(left, self._fit.block)
            pieces.append(self._block(turn, number, taken, not pieces))
            left -= taken
        if left > 0:
            pieces.append(self._texts.piece(left, source, first=not pieces))
        return self._texts.fit(" ".join(pieces), whole, source)

    def _made_block(self, turn: int, number: int, tokens: int, first: bool) -> str:
        return self._texts.piece(tokens, random.Random(f"{self._seed}/block/{turn}/{number}"), first)


def _scaled(tokens: int, scale: float, maximum: int | None) -> int:
    found = max(1, round(tokens * scale))
    return found if maximum is None else min(found, maximum)

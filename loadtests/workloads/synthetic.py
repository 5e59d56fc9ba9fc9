"""Synthetic prompts and conversations, each different, with random lengths."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from loadtests.workloads.distributions import Distribution
from loadtests.workloads.scripted_conversation import ClientCancellation, ScriptedConversation, Turn, user
from loadtests.workloads.spec import WorkloadSpec
from loadtests.workloads.text_generator import TextGenerator, prompt_text

_PREFIXES_KEPT = 256


class SyntheticWorkload:
    """Sessions of synthetic prompts, without end; `numbers` returns the distribution of a field of `spec`.

    `max_input_tokens` limits a session's tokens as requested: answers count as their maximum.
    """

    def __init__(
        self, spec: WorkloadSpec, numbers: Callable[[str], Distribution], texts: TextGenerator,
        cancellation: ClientCancellation, seed: int,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._input_tokens = numbers("input_tokens")
        self._output_tokens = numbers("output_tokens").at_most(spec.max_output_tokens)
        self._turn_tokens = self._input_tokens if spec.turn_tokens is None else numbers("turn_tokens")
        self._turns, self._think_time = numbers("turns"), numbers("think_time")
        self._texts = texts
        self._cancellation = cancellation
        self._seed = seed
        self._prefix = lru_cache(_PREFIXES_KEPT)(self._make_prefix)

    def session(self, number: int) -> ScriptedConversation:
        spec, source = self._spec, random.Random(f"{self._seed}/{number}")
        has_prefix = spec.prefix_tokens and source.random() < spec.prefix_fraction
        prefix = self._prefix(source.randrange(spec.prefix_count)) if has_prefix else ""
        held = spec.prefix_tokens if has_prefix else 0
        turns: list[Turn] = []
        for turn in range(self._turns.draw_integer(source)):
            tokens = (self._turn_tokens if turn else self._input_tokens).draw_integer(source)
            if spec.max_input_tokens is not None:
                if turn and held + tokens > spec.max_input_tokens:
                    break
                tokens = min(tokens, spec.max_input_tokens - held)
            if turn:
                text = self._texts.piece(tokens, source, first=True)
            else:
                text = prompt_text(self._texts, tokens, source, prefix, held)
            max_tokens = self._output_tokens.draw_integer(source)
            think = self._think_time.draw_number(source) if turn else 0.0
            turns.append(Turn(user(text), max_tokens, think, self._cancellation.draw(source)))
            held += tokens + max_tokens
        return ScriptedConversation(number, turns, chat=spec.prompt_format == "messages")

    def _make_prefix(self, number: int) -> str:
        source = random.Random(f"{self._seed}/prefix/{number}")
        return self._texts.piece(self._spec.prefix_tokens, source, first=True)

"""Prompts that would get the same unfinished block of the prefix cache wait for each other; all others don't."""

from __future__ import annotations

import random

import pytest

from inflight.runtime.backends.openvino.prefix_conflicts import PrefixConflicts
from inflight.runtime.engine.interface import EngineOptions, load_model_runner
from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import FinishReason, GenerationRequest, TokenEvent
from tests.fixtures.engines import TinyEngine

Tokens = tuple[int, ...]


@pytest.mark.parametrize(
    ("begun", "prompt", "others", "waits"),
    [
        # One begins with the other, or is it.
        ([], (1, 2, 3), [(1, 2)], True),
        ([], (1, 2, 3), [(1, 2, 3, 4)], True),
        ([], (1, 2, 3), [(1, 2, 3)], True),
        # They part, behind a prompt that was begun before or not.
        ([(1, 2)], (1, 2, 3), [(1, 2, 4)], True),
        ([(1,)], (1, 2, 3), [(2, 2), (1, 3)], True),
        ([(1, 2, 3)], (1, 2, 3), [(1, 2, 4)], False),
        ([(1, 5), (1, 2, 9)], (1, 2, 3), [(1, 2, 4)], False),
        ([(1, 2)], (1, 2, 3), [(5, 2, 4), (1, 3)], False),
        ([], (1, 2, 3), [(1, 2, 4)], False),
        ([(1,)], (1, 2, 3), [], False),
    ],
)
def test_who_waits(begun: list[Tokens], prompt: Tokens, others: list[Tokens], waits: bool) -> None:
    prefixes = PrefixConflicts(8)
    for one in begun:
        prefixes.add(one)
    assert prefixes.conflicts(prompt, others) is waits


def test_no_more_is_remembered_than_there_are_blocks() -> None:
    prefixes = PrefixConflicts(3)
    for first in range(5):
        prefixes.add((first,))
        prefixes.add((9,))
    for first, remembered in ((9, True), (4, True), (1, False)):
        assert prefixes.conflicts((first, 1), [(first, 2)]) is remembered


class PrefixTraffic:
    """Asks an engine for many answers at once."""

    def __init__(self, tiny_engine: TinyEngine, budget: int, *, reuse: bool) -> None:
        options = EngineOptions(
            "openvino", str(tiny_engine("llama")), 16384, kv_cache_reuse=reuse, max_num_tokens=budget
        )
        self.engine = Scheduler(load_model_runner(options))

    def ask(self, prompts: list[tuple[Tokens, int]], source: random.Random) -> list[list[int]]:
        """The answers to prompts of so many tokens each, which come at random turns."""
        answers: list[list[int]] = [[] for _ in prompts]
        ends: list[FinishReason] = []
        for (prompt, length), answer in zip(prompts, answers, strict=True):
            while source.random() < 0.4:
                self.engine.step()

            def on_event(event: TokenEvent, answer: list[int] = answer) -> None:
                answer.extend(event.token_ids)
                if event.finish_reason is not None:
                    ends.append(event.finish_reason)

            self.engine.submit(GenerationRequest(prompt, length), on_event)
        while not self.engine.idle:
            self.engine.step()
        assert ends == [FinishReason.LENGTH] * len(prompts)
        return answers


@pytest.mark.parametrize("budget", [96, pytest.param(24, marks=pytest.mark.slow)])
def test_prompts_that_continue_each_other_are_answered_as_alone(tiny_engine: TinyEngine, budget: int) -> None:
    source = random.Random(budget)
    alone, together = PrefixTraffic(tiny_engine, budget, reuse=False), PrefixTraffic(tiny_engine, budget, reuse=True)
    texts: list[Tokens] = []
    for length in (4, 9, 13):
        prompt = tuple(source.randrange(3, 1500) for _ in range(length))
        (answer,) = alone.ask([(prompt, 48)], source)
        texts.append((*prompt, *answer))
    for _ in range(40):
        asked = []
        for _ in range(8):
            text, at, length = source.choice(texts), source.randrange(13, 44), source.randrange(1, 17)
            asked.append((text, at, min(length, len(text) - at)))
        answers = together.ask([(text[:at], length) for text, at, length in asked], source)
        assert answers == [list(text[at : at + length]) for text, at, length in asked]

"""What a planner promises for any texts, arrivals and priorities."""

from __future__ import annotations

import math
import random
import time
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.runtime.encoders.batch_planner import Planner, PlannerLimits, WaitingText, padded_length

Text = WaitingText[int]
LIMITS = st.builds(
    PlannerLimits, st.integers(1, 600), st.integers(1, 20), st.sampled_from([0.0, 1.0, 3.0, 10.0, 1000.0])
)
ARRIVALS = st.lists(st.tuples(st.integers(1, 300), st.integers(-1, 2), st.integers(0, 2)), min_size=1, max_size=80)
"""Tokens and priority of each text, and how many micro-batches are planned before it arrives, a second each."""


def log_normal(count: int, seed: int = 0) -> list[int]:
    """Lengths with median 40 and p90 200, at most 512."""
    drawn = random.Random(seed)
    return [max(3, min(512, round(40 * math.exp(math.log(5) / 1.2816 * drawn.gauss(0, 1))))) for _ in range(count)]


def plan(limits: PlannerLimits, arrivals: list[tuple[int, int, int]]) -> Iterator[tuple[float, list[Text], list[Text]]]:
    """Yield the time of each micro-batch, the texts that waited before, and those of the micro-batch."""
    planner: Planner[int] = Planner(limits)
    waiting: list[Text] = []
    now = 0.0

    def planned() -> tuple[float, list[Text], list[Text]]:
        nonlocal now
        before, batch = list(waiting), planner.next_batch(now)
        for text in batch:
            waiting.remove(text)
        now += 1
        return now - 1, before, batch

    for number, (tokens, priority, pause) in enumerate(arrivals):
        for _ in range(pause):
            yield planned()
        text = WaitingText(number, tokens, priority, now)
        planner.add(text)
        waiting.append(text)
    while waiting:
        yield planned()
    assert len(planner) == 0


@given(LIMITS, ARRIVALS)
@settings(max_examples=400, deadline=None)
def test_every_text_is_in_one_micro_batch_within_the_limits_in_its_turn(
    limits: PlannerLimits, arrivals: list[tuple[int, int, int]]
) -> None:
    seen, passed_over = list[int](), None
    for now, before, batch in plan(limits, arrivals):
        assert bool(batch) == bool(before)
        assert len(batch) <= limits.max_batch_texts
        if len(batch) > 1:
            assert max(text.tokens for text in batch) * len(batch) <= limits.max_batch_tokens
        seen += [text.item for text in batch]
        # An overdue text waits for one micro-batch more at most.
        overdue = [text for text in before if now - text.arrival >= limits.max_wait_s]
        left = overdue[0] if overdue and overdue[0] not in batch else None
        assert left is None or left is not passed_over
        passed_over = left
        if batch and now - batch[0].arrival < limits.max_wait_s:
            assert batch[0] is min(before, key=lambda text: (-text.priority, text.item))
            # Texts of a lower priority join an urgent one only while little is planned.
            longest, budget = 0, limits.max_batch_tokens / 8
            for size, text in enumerate(batch):
                assert text.priority >= batch[0].priority or size * longest < budget
                longest = max(longest, text.tokens)
    assert sorted(seen) == list(range(len(arrivals)))


@given(ARRIVALS)
@settings(max_examples=100, deadline=None)
def test_no_urgent_text_waits_for_two_micro_batches_of_a_backlog(arrivals: list[tuple[int, int, int]]) -> None:
    planner: Planner[int] = Planner(PlannerLimits(128, 8, 0.0))
    for number, (tokens, _, _) in enumerate(arrivals):
        planner.add(WaitingText(number, tokens, 0, 0.0))
    planner.next_batch(100.0)
    planner.add(WaitingText(-1, 10, 1, 100.0))
    next_two = [*planner.next_batch(101.0), *planner.next_batch(102.0)]
    assert -1 in [text.item for text in next_two]


@given(ARRIVALS, st.data())
@settings(max_examples=100, deadline=None)
def test_dropped_texts_are_not_planned(arrivals: list[tuple[int, int, int]], data: st.DataObject) -> None:
    planner: Planner[int] = Planner(PlannerLimits(256, 16, 1.0))
    texts = [WaitingText(number, tokens, priority, 0.0) for number, (tokens, priority, _) in enumerate(arrivals)]
    for text in texts:
        planner.add(text)
    dropped = data.draw(st.sets(st.sampled_from(range(len(texts)))))
    assert all(planner.drop(texts[number]) for number in dropped)
    assert not any(planner.drop(texts[number]) for number in dropped)
    planned = []
    while batch := planner.next_batch(0.0):
        planned += [text.item for text in batch]
    assert set(planned) == set(range(len(texts))) - dropped
    assert len(planner) == 0


@pytest.mark.parametrize(("depth", "most"), [(5000, 1.04), (256, 1.10)])
def test_a_backlog_of_mixed_lengths_is_hardly_padded(depth: int, most: float) -> None:
    lengths = log_normal(5000)
    planner: Planner[int] = Planner(PlannerLimits(2048, 256, 5.0))
    real = padded = 0
    for number, tokens in enumerate(lengths):
        planner.add(WaitingText(tokens, padded_length(tokens, 512), 0, float(number)))
        if len(planner) >= depth or number == len(lengths) - 1:
            while len(planner) >= depth or (number == len(lengths) - 1 and len(planner)):
                batch = planner.next_batch(float(number))
                real += sum(text.item for text in batch)
                padded += max(text.tokens for text in batch) * len(batch)
    assert real == sum(lengths)
    assert padded / real <= most


@pytest.mark.alone
def test_planning_takes_no_longer_with_many_waiting_texts() -> None:
    def seconds_for_100_batches(waiting: int) -> float:
        planner: Planner[int] = Planner(PlannerLimits(2048, 256, 5.0))
        for number, tokens in enumerate(log_normal(waiting)):
            planner.add(WaitingText(number, tokens, 0, 0.0))
        began = time.process_time()
        texts = sum(len(planner.next_batch(0.0)) for _ in range(100))
        return (time.process_time() - began) / texts

    few = min(seconds_for_100_batches(4000) for _ in range(3))
    many = min(seconds_for_100_batches(40_000) for _ in range(3))
    assert many < 4 * few


@pytest.mark.parametrize(
    ("tokens", "padded"), [(1, 4), (4, 4), (125, 128), (128, 128), (129, 136), (257, 272), (501, 510), (8192, 8192)]
)
def test_lengths_are_rounded_up_to_few_ones(tokens: int, padded: int) -> None:
    assert padded_length(tokens, 510 if tokens < 512 else 8192) == padded


def test_lengths_that_are_computed_are_few_and_hardly_longer() -> None:
    lengths = [padded_length(tokens, 8192) for tokens in range(1, 8193)]
    assert all(tokens <= length < tokens + max(4, tokens / 16) for tokens, length in enumerate(lengths, 1))
    assert len(set(lengths)) <= 128


def test_texts_that_were_planned_or_dropped_are_not_kept() -> None:
    class Item:
        pass

    planner: Planner[Item] = Planner(PlannerLimits(2048, 256, 5.0))
    items: list[weakref.ref[Item]] = []
    for _ in range(40):
        texts = [WaitingText(Item(), 300, 0, 0.0) for _ in range(256)]
        items += [weakref.ref(text.item) for text in texts]
        for text in texts:
            planner.add(text)
        for text in texts:
            planner.drop(text)
        planner.add(WaitingText(Item(), 10, 0, 0.0))
        planner.next_batch(0.0)
    del texts, text
    assert sum(item() is not None for item in items) <= 1100


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(-1, 1)), min_size=1, max_size=40))
def test_only_texts_of_the_anchors_group_share_its_micro_batch(texts: list[tuple[int, int, int]]) -> None:
    planner: Planner[int] = Planner(PlannerLimits(1 << 20, 8, 1000.0))
    for number, (group, tokens, priority) in enumerate(texts):
        planner.add(WaitingText(number, tokens, priority, 0.0, group))
    planned: list[int] = []
    while batch := planner.next_batch(0.0):
        assert len({text.group for text in batch}) == 1
        waiting = [(-priority, number) for number, (_, _, priority) in enumerate(texts) if number not in planned]
        assert min(waiting)[1] == batch[0].item, "the most urgent text of all groups goes first"
        planned += [text.item for text in batch]
    assert sorted(planned) == list(range(len(texts)))

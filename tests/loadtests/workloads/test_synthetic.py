"""Made prompts and conversations: lengths, prefixes, turns, clients that leave."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from loadtests.workloads.factory import make_workload
from loadtests.workloads.interface import RequestSpec, Workload
from loadtests.workloads.spec import WorkloadSpec
from tests.loadtests.workloads.workload_requests import asked


def made(seed: int = 0, **fields: Any) -> Workload:
    return make_workload(WorkloadSpec(**fields), {}, seed)


def first(workload: Workload, count: int) -> list[RequestSpec]:
    return [asked(workload.session(number))[0] for number in range(count)]


def words(ask: RequestSpec) -> list[str]:
    assert isinstance(ask.prompt, str)
    return ask.prompt.split()


def test_prompts_have_the_lengths_that_were_asked_for_and_all_differ() -> None:
    found = first(made(input_tokens="uniform:20,40", output_tokens="uniform:5,9"), 400)
    lengths = Counter(len(words(ask)) for ask in found)
    assert (min(lengths), max(lengths), len(lengths)) == (20, 40, 21)
    assert {ask.max_tokens for ask in found} == {5, 6, 7, 8, 9}
    assert len({" ".join(words(ask)[:8]) for ask in found}) == 400
    assert {(ask.think_time, ask.cancel_after) for ask in found} == {(0.0, None)}


def test_a_word_can_count_for_several_tokens() -> None:
    assert len(words(first(made(input_tokens="300", tokens_per_word=3), 1)[0])) == 100


def test_maxima_hold() -> None:
    found = first(made(input_tokens="500", output_tokens="500", max_input_tokens=30, max_output_tokens=7), 20)
    assert {(len(words(ask)), ask.max_tokens) for ask in found} == {(30, 7)}


def test_a_share_of_sessions_begins_with_one_of_the_prefixes() -> None:
    found = first(made(input_tokens="10", prefix_tokens=50, prefix_count=4, prefix_fraction=0.75), 800)
    prefixes = Counter(" ".join(words(ask)[:50]) for ask in found if len(words(ask)) == 60)
    assert len(prefixes) == 4
    assert sum(prefixes.values()) / 800 == pytest.approx(0.75, abs=0.06)
    assert min(prefixes.values()) > 100
    assert {len(words(ask)) for ask in found} == {10, 60}
    assert len({" ".join(words(ask)[-10:]) for ask in found}) == 800


def test_each_turn_holds_all_before_as_messages() -> None:
    session = made(
        turns="3", input_tokens="20", turn_tokens="5", think_time="uniform:1,2", prompt_format="messages"
    ).session(0)
    found = asked(session, "the answer")
    roles = [[message["role"] for message in ask.prompt if isinstance(message, dict)] for ask in found]
    assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant", "user", "assistant", "user"]]
    for before, after in pairwise(found):
        assert [*before.prompt, {"role": "assistant", "content": "the answer"}] == after.prompt[:-1]
    last = found[-1].prompt[-1]
    assert isinstance(last, dict)
    assert len(last["content"].split()) == 5
    assert found[0].think_time == 0
    assert all(1 <= ask.think_time <= 2 for ask in found[1:])


def test_each_turn_holds_all_before_as_text() -> None:
    found = asked(made(turns="3", input_tokens="20", turn_tokens="5").session(0), " the answer")
    for before, after in pairwise(found):
        assert isinstance(before.prompt, str)
        assert isinstance(after.prompt, str)
        assert after.prompt.startswith(before.prompt + " the answer\n\n")
        assert len(words(after)) == len(words(before)) + 2 + 5


def test_the_number_of_turns_is_drawn() -> None:
    workload = made(turns="uniform:1,4", input_tokens="5")
    counts = Counter(len(asked(workload.session(number))) for number in range(400))
    assert sorted(counts) == [1, 2, 3, 4]
    assert min(counts.values()) > 60


def test_a_conversation_ends_before_it_is_too_long() -> None:
    workload = made(turns="100", input_tokens="20", turn_tokens="10", output_tokens="15", max_input_tokens=100)
    found = asked(workload.session(0), " a" * 15)
    assert [len(words(ask)) for ask in found] == [20, 45, 70, 95]


def test_a_share_of_clients_leaves() -> None:
    found = first(made(input_tokens="5", cancel_fraction=0.2, cancel_after="uniform:0.5,1.5"), 1000)
    leaving = [ask.cancel_after for ask in found if ask.cancel_after is not None]
    assert len(leaving) / 1000 == pytest.approx(0.2, abs=0.05)
    assert 0.5 <= min(leaving) < 0.6 < 1.4 < max(leaving) <= 1.5

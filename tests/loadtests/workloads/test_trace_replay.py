"""Traces replayed: moments, lengths made to fit, shared beginnings, rounds."""

from itertools import takewhile
from typing import Any

import pytest

from loadtests.errors import LoadError
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.interface import RequestSpec, Workload
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.errors import raises
from tests.loadtests.workloads.example_traces import AZURE_2023, BURST_1, mooncake, row
from tests.loadtests.workloads.workload_requests import asked

SHARED = mooncake(
    row(0, 1082, 10, hash_ids=[0, 1, 2]),
    row(1000, 2600, 20, hash_ids=[0, 1, 3, 4, 5, 6]),
    row(4000, 600, 30, hash_ids=[0, 7]),
    row(9000, 1500, 40),
)


def made(text: str, seed: int = 0, **fields: Any) -> Workload:
    return make_workload(WorkloadSpec(trace="t", **fields), {"t": text.encode()}, seed)


def one(workload: Workload, number: int) -> RequestSpec:
    (ask,) = asked(workload.session(number))
    return ask


def words(workload: Workload, number: int) -> list[str]:
    prompt = one(workload, number).prompt
    assert isinstance(prompt, str)
    return prompt.split()


def shared(one: list[str], other: list[str]) -> int:
    """How many words both begin with."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def test_requests_come_when_and_as_long_as_they_did() -> None:
    workload = made(AZURE_2023)
    sessions = [workload.session(number) for number in range(3)]
    assert [session and session.due for session in sessions] == [0.0, pytest.approx(0.052), None]
    assert [len(words(workload, number)) for number in range(2)] == [4800, 3100]
    assert [one(workload, number).max_tokens for number in range(2)] == [10, 8]


def test_equal_hash_ids_are_equal_texts_and_nothing_else_is() -> None:
    workload = made(SHARED)
    texts = [words(workload, number) for number in range(4)]
    assert [len(text) for text in texts] == [1082, 2600, 600, 1500]
    assert [shared(texts[0], text) for text in texts] == [1082, 1024, 512, 0]


def test_lengths_are_made_to_fit_and_beginnings_stay_shared() -> None:
    workload = made(SHARED, input_scale=0.1, output_scale=0.5, max_input_tokens=120, max_output_tokens=15)
    texts = [words(workload, number) for number in range(4)]
    assert [len(text) for text in texts] == [108, 120, 60, 120]
    assert [shared(texts[0], text) for text in texts] == [108, 102, 51, 0]
    assert [one(workload, number).max_tokens for number in range(4)] == [5, 10, 15, 15]


def test_blocks_of_another_length() -> None:
    workload = made(SHARED, block_tokens=100)
    assert shared(words(workload, 0), words(workload, 1)) == 200


def test_a_trace_can_begin_later() -> None:
    workload = made(SHARED, trace_start=0.5)
    sessions = [workload.session(number) for number in range(4)]
    assert [session.due for session in sessions if session] == [0.5, 3.5, 8.5]
    with raises(LoadError, "workload_invalid", naming=("9 s", "trace_start")):
        made(SHARED, trace_start=10)


def test_a_repeated_trace_goes_on_after_its_mean_interval_with_new_texts() -> None:
    workload = made(SHARED, repeat=True)
    sessions = [workload.session(number) for number in range(9)]
    assert [session.due for session in sessions if session] == [0, 1, 4, 9, 12, 13, 16, 21, 24]
    assert shared(words(workload, 0), words(workload, 4)) < 5
    assert shared(words(workload, 4), words(workload, 5)) == 1024
    with raises(LoadError, "workload_invalid", naming="t"):
        made(mooncake(row(), row()), repeat=True)


def test_each_request_has_a_text_of_its_own_without_hash_ids() -> None:
    workload = made(BURST_1)
    assert shared(words(workload, 0), words(workload, 1)) < 3


def test_as_messages_and_with_clients_that_leave() -> None:
    ask = one(made(AZURE_2023, prompt_format="messages", cancel_fraction=1, cancel_after="3"), 0)
    assert ask.cancel_after == 3
    assert isinstance(ask.prompt, list)
    assert ask.prompt[0]["role"] == "user"


@pytest.mark.parametrize("name", ["mooncake", "azure", "burstgpt"])
def test_the_samples_can_be_replayed(name: str) -> None:
    spec = WorkloadSpec(trace=f"sample:{name}", max_input_tokens=200)
    workload = make_workload(spec, load_files(spec), 0)
    dues: list[float] = []
    while (session := workload.session(len(dues))) is not None:
        dues.append(session.due or 0.0)
        assert asked(session)[0].max_tokens > 0
    assert 40 <= len(dues) <= 48
    assert dues == sorted(dues)
    assert 15 < dues[-1] < 120

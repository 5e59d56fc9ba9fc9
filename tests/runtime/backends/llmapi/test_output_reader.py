"""What is read of an answer as it grows, in each of the forms that versions of the library give it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from inflight.runtime.backends.llmapi.output_reader import OutputReader
from inflight.runtime.engine.interface import StepOutput
from inflight.runtime.messages import FinishReason, GenerationRequest, SamplingConfig


@dataclass
class StubOutput:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    cumulative_logprob: float | None = None
    finish_reason: str | None = None


@dataclass
class StubResult:
    outputs: list[StubOutput]
    finished: bool = False
    error: str | None = None


@dataclass
class StubLogprob:
    logprob: float
    rank: int = 1


def reader(log_probs: bool = False, beams: int = 1) -> OutputReader:
    request = GenerationRequest((1,), 9, (2,), SamplingConfig(beam_width=beams), log_probs=log_probs)
    return OutputReader(5, request, (2,))


def test_only_what_is_new_is_told() -> None:
    reading, output = reader(), StubOutput()
    result = StubResult([output])
    assert reading.read(result) is None
    output.token_ids = [7, 8]
    assert reading.read(result) == StepOutput(5, (7, 8))
    output.token_ids = [7, 8, 9, 2]
    output.finish_reason, result.finished = "stop", True
    assert reading.read(result) == StepOutput(5, (9,), FinishReason.STOP)


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stop", FinishReason.STOP), ("length", FinishReason.LENGTH), ("timeout", FinishReason.DEADLINE)],
)
def test_an_end_may_come_alone(said: str, reason: FinishReason) -> None:
    assert reader().read(StubResult([StubOutput([], finish_reason=said)], finished=True)) == StepOutput(5, (), reason)


def test_the_last_token_of_a_full_length_is_kept_even_if_it_is_an_end() -> None:
    progress = reader().read(StubResult([StubOutput([7, 2], finish_reason="length")], finished=True))
    assert progress == StepOutput(5, (7, 2), FinishReason.LENGTH)


@pytest.mark.parametrize(
    "entries",
    [
        [-0.5, -0.25, -9.0],
        [{7: StubLogprob(-0.5)}, {9: StubLogprob(-0.1), 8: StubLogprob(-0.25, 2)}, {2: StubLogprob(-9.0)}],
        [{7: -0.5}, {8: -0.25}, {2: -9.0}],
    ],
)
def test_log_probabilities_are_those_of_the_tokens_in_either_form(entries: list[Any]) -> None:
    """The end token's is left out."""
    reading = reader(log_probs=True)
    first = reading.read(StubResult([StubOutput([7], entries[:1])]))
    last = reading.read(StubResult([StubOutput([7, 8, 2], entries, finish_reason="stop")], finished=True))
    assert first == StepOutput(5, (7,), log_probs=(-0.5,))
    assert last == StepOutput(5, (8,), FinishReason.STOP, (-0.25,))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (StubOutput([7, 8], [-0.5]), "the engine refused the request: it returned fewer log probabilities than tokens"),
        (
            StubOutput([7], [{8: StubLogprob(-0.5)}]),
            "the engine refused the request: it returned no log probability for token 7",
        ),
    ],
)
def test_log_probabilities_that_are_missing_end_the_answer(output: StubOutput, said: str) -> None:
    progress = reader(log_probs=True).read(StubResult([output]))
    assert progress == StepOutput(5, (), FinishReason.ERROR, error=(said, "invalid_request"))


def test_an_error_in_the_result_ends_the_answer() -> None:
    progress = reader().read(StubResult([StubOutput()], finished=True, error="it is\ntoo long"))
    said = "the engine refused the request: it is too long"
    assert progress == StepOutput(5, (), FinishReason.ERROR, error=(said, "invalid_request"))


@pytest.mark.parametrize("reason", ["cancelled", None, "not_finished"])
def test_an_end_that_nobody_asked_for_is_an_error(reason: str | None) -> None:
    progress = reader().read(StubResult([StubOutput([7], finish_reason=reason)], finished=True))
    assert progress is not None
    assert progress.finish_reason is FinishReason.ERROR
    assert progress.error == (f"the engine refused the request: its answer ended with {reason!r}", "invalid_request")


def test_beams_are_told_once_they_are_whole() -> None:
    reading = reader(log_probs=True, beams=2)
    outputs = [
        StubOutput([7, 2, 2, 2], [-0.5, -1.0, 0.0, 0.0], -1.5, "stop"),
        StubOutput([8, 9], [-1.0, -1.0], None, "length"),
    ]
    assert reading.read(StubResult(outputs)) is None
    progress = reading.read(StubResult(outputs, finished=True))
    assert progress is not None
    assert progress.finish_reason is FinishReason.STOP
    assert [(beam.token_ids, beam.log_probs, beam.cumulative_log_prob) for beam in progress.beams] == [
        ((7,), (-0.5,), -1.5),
        ((8, 9), (-1.0, -1.0), -2.0),
    ]

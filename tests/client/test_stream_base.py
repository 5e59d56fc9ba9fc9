"""What a stream has said is put together to the whole answer."""

from __future__ import annotations

from inflight_client.results import Delta, LogProb, Usage
from inflight_client.stream_base import Transcript


def told(*deltas: Delta) -> Transcript:
    transcript = Transcript("mine")
    for delta in deltas:
        transcript.add(delta)
    return transcript


def test_there_is_no_answer_before_its_end() -> None:
    transcript = told(Delta("お"), Delta("茶"))
    assert transcript.text == "お茶"
    assert transcript.generation(None, None) is None


def test_the_parts_are_joined() -> None:
    deltas = [
        Delta("a", token_ids=(1, 2), log_probs=(LogProb(-0.5), LogProb(-1.0))),
        Delta("b", "stop", Usage(3, 3), (3,), (LogProb(-2.0),)),
    ]
    answer = told(*deltas).generation(-3.5, None)
    assert answer is not None
    assert (answer.text, answer.finish_reason, answer.usage) == ("ab", "stop", Usage(3, 3))
    assert (answer.token_ids, answer.log_probs, answer.cumulative_log_prob) == ((1, 2, 3), (-0.5, -1.0, -2.0), -3.5)
    assert 0 <= answer.timings.first_token <= answer.timings.total


def test_what_was_not_asked_for_is_not_there() -> None:
    answer = told(Delta("a"), Delta("b", "stop")).generation(None, None)
    assert answer is not None
    assert (answer.usage, answer.token_ids, answer.log_probs) == (None, None, None)


def test_an_end_without_tokens_keeps_those_before_it() -> None:
    answer = told(Delta("a", log_probs=(LogProb(-0.5),)), Delta("", "unknown")).generation(None, None)
    assert answer is not None
    assert answer.log_probs == (LogProb(-0.5),)

"""Responses become deltas, and what was lost or doubled on the way is found out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from inflight_client.call import Call
from inflight_client.deployments.answer import AnswerDecoder
from inflight_client.deployments.requests import answer_decoder
from inflight_client.errors import InflightError
from inflight_client.results import Delta, LogProb, ServerTimings, Usage
from inflight_client.sampling import Sampling

from tests.client.support.deployments import OURS, find, repository
from tests.fixtures.errors import raises
from tests.standins.kserve.repository import llmapi, text_models


class Response:
    """A response with these outputs; see transport.InferResponse."""

    def __init__(self, final: bool | None = None, **outputs: Any) -> None:
        self.id = "mine"
        self.final = final
        self._outputs = outputs

    def text(self, name: str) -> str | None:
        return self._outputs.get(name)

    def integer(self, name: str) -> int | None:
        value = self._outputs.get(name)
        return value[0] if isinstance(value, tuple) else value

    def integers(self, name: str) -> tuple[int, ...] | None:
        return self._outputs.get(name)

    def numbers(self, name: str) -> tuple[float, ...] | None:
        return self._outputs.get(name)

    def texts(self, name: str, limit: int | None = None) -> tuple[str, ...] | None:
        return self._outputs.get(name)

    def array(self, name: str) -> Any:
        return self._outputs.get(name)


def said(text: str, **outputs: Any) -> Response:
    return Response(text_output=text, **outputs)


def end(text: str = "", reason: str = "length", responses: int | None = None, **outputs: Any) -> Response:
    counts = {"num_input_tokens": 5, "num_output_tokens": 3, **outputs}
    if responses is not None:
        counts["num_responses"] = responses
    return Response(text_output=text, finish_reason=reason, **counts)


OUR_DEPLOYMENT = find(repository(OURS))
TEXT = find(text_models())
ACCUMULATING = find(text_models(accumulate=True), "tensorrt_llm_bls")
API = find(llmapi())


def ours(**options: Any) -> AnswerDecoder:
    return answer_decoder(OUR_DEPLOYMENT, Call("Tea?", **{"stream": True, **options}))


def theirs(deployment: Any = TEXT, **options: Any) -> AnswerDecoder:
    answer: AnswerDecoder = answer_decoder(deployment, Call("Tea?", **{"stream": True, **options}))
    return answer


def read(answer: AnswerDecoder, *responses: Response) -> list[Delta]:
    deltas = [answer.add_response(response) for response in responses]
    last = answer.finish()
    return deltas if last is None else [*deltas, last]


def text(deltas: list[Delta]) -> str:
    assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    return "".join(delta.text for delta in deltas)


def damage(answer: AnswerDecoder, *responses: Response) -> str:
    with raises(InflightError, "answer_damaged") as raised:
        read(answer, *responses)
    return str(raised.value)


def test_a_streamed_answer_of_ours() -> None:
    deltas = read(ours(), said("One"), said(" two"), end(" three", responses=3))
    assert deltas == [Delta("One"), Delta(" two"), Delta(" three", "length", Usage(5, 3))]


def test_tokens_and_log_probs_come_with_their_text() -> None:
    answer = ours(return_token_ids=True, return_log_probs=True)
    first = said("One", token_ids=(1, 2), output_log_probs=(-0.5, -1.0), cum_log_probs=(-1.5,))
    last = end(" two", responses=2, token_ids=(3,), output_log_probs=(-0.25,), cum_log_probs=(-1.75,))
    assert read(answer, first, last) == [
        Delta("One", None, None, (1, 2), (LogProb(-0.5), LogProb(-1.0))),
        Delta(" two", "length", Usage(5, 3), (3,), (LogProb(-0.25),)),
    ]
    assert answer.cumulative_log_prob == -1.75


def test_likeliest_tokens_come_with_their_log_prob() -> None:
    answer = ours(top_log_probs=2, return_prompt_log_probs=True)
    tops: dict[str, Any] = {"top_token_ids": np.array([[[1, 2]]]), "top_log_probs": np.array([[[-0.5, -1.0]]])}
    of_prompt: dict[str, Any] = {
        "prompt_log_probs": (math.nan, -2.0),
        "prompt_top_token_ids": np.array([[[-1, -1], [8, 9]]]),
        "prompt_top_log_probs": np.array([[[math.nan, math.nan], [-0.25, -0.75]]]),
    }
    said_all = end("One", responses=1, token_ids=(1,), output_log_probs=(-0.5,), **tops, **of_prompt)
    (delta,) = read(answer, said_all)
    assert [each.top for each in delta.log_probs or ()] == [{1: -0.5, 2: -1.0}]
    assert [each.top for each in delta.prompt_log_probs or ()] == [{}, {8: -0.25, 9: -0.75}]
    lost = end("One", responses=1, token_ids=(1,), output_log_probs=(-0.5,))
    assert "without top_token_ids" in damage(ours(top_log_probs=2), lost)


def test_tokens_come_with_a_whole_answer_without_being_asked_for() -> None:
    (delta,) = read(ours(stream=False), end("One two", responses=1, token_ids=(1, 2, 3)))
    assert delta.token_ids == (1, 2, 3)


def test_moments_are_told_after_the_arrival() -> None:
    answer = ours(return_perf_metrics=True)
    times: dict[str, Any] = {"arrival_time_ns": 10**9, "first_scheduled_time_ns": 2 * 10**9, "first_token_time_ns": 0}
    unfinished = said("One", **times, last_token_time_ns=0)
    finished = end(responses=2, **{**times, "first_token_time_ns": 3 * 10**9}, last_token_time_ns=5 * 10**9)
    assert answer.add_response(unfinished) == Delta("One")
    assert answer.server_timings is None
    answer.add_response(finished)
    assert answer.server_timings == ServerTimings(1.0, 2.0, 4.0)


def test_lost_and_doubled_responses_are_found_out() -> None:
    assert "sent 4 responses but 3 arrived" in damage(ours(), said("One"), said(" two"), end(responses=4))
    assert "sent 2 responses but 3 arrived" in damage(ours(), said("One"), said("One"), end(responses=2))
    assert "data arrived after its end" in damage(ours(), end(responses=1), end(responses=1))
    assert "data arrived after its end" in damage(ours(), end(responses=1), said("more"))
    assert "no text_output" in damage(ours(), Response())
    whole = {"return_token_ids": True}
    assert "counts 3 tokens but 2 arrived" in damage(ours(**whole), end("One", responses=1, token_ids=(1, 2)))
    assert "no token_ids" in damage(ours(**whole), said("One"))


def test_a_cut_answer_may_have_other_counts() -> None:
    for reason in ("stop_word", "cancelled"):
        (delta,) = read(ours(return_token_ids=True), end("One", reason, responses=1, token_ids=(1, 2)))
        assert (delta.finish_reason, delta.usage) == (reason, Usage(5, 3))


def test_a_server_that_counts_no_responses_is_believed() -> None:
    assert text(read(ours(), said("One"), end(" two"))) == "One two"


def test_an_answer_without_an_end_is_a_server_that_has_gone() -> None:
    for answer, responses in (
        (ours(), [said("One")]),
        (theirs(API), [said("One", finish_reason="None")]),
        (theirs(), []),
    ):
        with raises(InflightError, "server_gone"):
            read(answer, *responses)


@pytest.mark.parametrize(("answer", "reason"), [(ours(), "deadline"), (theirs(API), "timeout")])
def test_time_that_was_over_is_an_error(answer: AnswerDecoder, reason: str) -> None:
    with raises(InflightError, "deadline_exceeded"):
        read(answer, said("One"), end(reason=reason))


@pytest.mark.parametrize("flags", [(False, True), (False, False), (None, None)])
def test_the_text_models_tell_no_reason_and_the_counts_of_each_response(flags: tuple[bool | None, ...]) -> None:
    responses = [
        Response(flag, text_output=piece, num_input_tokens=5, num_output_tokens=2)
        for flag, piece in zip(flags, ("One", " two"), strict=True)
    ]
    deltas = read(theirs(), *responses)
    assert text(deltas) == "One two"
    assert (deltas[-1].finish_reason, deltas[-1].usage) == ("unknown", Usage(5, 4))


def test_an_answer_of_others_has_a_text_be_it_empty() -> None:
    for responses in ([Response(final=True)], [Response(num_output_tokens=1)], [Response(), Response(final=True)]):
        assert "it has no text" in damage(theirs(), *responses)
    assert read(theirs(), said(""), Response(final=True))[-1].finish_reason == "unknown"


def test_a_whole_answer_of_others_comes_once() -> None:
    once, twice = said("tea"), said("tea")
    assert "two texts arrived" in damage(theirs(stream=False), once, twice)
    assert text(read(theirs(stream=False), once, Response(final=True))) == "tea"
    assert text(read(theirs(), once, twice)) == "teatea", "tokens may well repeat themselves"


def test_a_last_response_may_be_empty() -> None:
    deltas = read(theirs(), Response(False, text_output="One"), Response(True))
    assert text(deltas) == "One"
    assert deltas[-1].usage is None


def test_stop_words_are_cut_off_where_the_deployment_leaves_them() -> None:
    answer = theirs(sampling=Sampling(stop=("END",)))
    assert answer.add_response(said("One E")) == Delta("One ")
    assert not answer.done
    assert answer.add_response(said("ND more")) == Delta("", "stop_word")
    assert answer.done
    assert answer.finish() is None


def test_what_may_have_been_a_stop_word_comes_with_the_end() -> None:
    deltas = read(theirs(sampling=Sampling(stop=("END",))), said("One E"), said("N"))
    assert (text(deltas), deltas[-1].finish_reason) == ("One EN", "unknown")


def test_a_whole_answer_is_cut_at_its_stop_word() -> None:
    deltas = read(theirs(stream=False, sampling=Sampling(stop=(".",))), Response(True, text_output="One. Two."))
    assert deltas == [Delta("One", "stop_word")]


def test_accumulated_text_comes_as_what_is_new() -> None:
    deltas = read(theirs(ACCUMULATING), said("One"), said("One two"), said("One two, three"))
    assert text(deltas) == "One two, three"
    assert [delta.text for delta in deltas] == ["One", " two", ", three", ""]
    (whole,) = read(theirs(ACCUMULATING, stream=False), Response(True, text_output="One two"))
    assert whole.text == "One two"


def test_the_llm_api_sends_all_so_far_and_says_none_for_no_reason() -> None:
    nothing = {"finish_reason": "None", "stop_reason": "None"}
    deltas = read(
        theirs(API, sampling=Sampling(stop=(" END",))),
        said("One", **nothing),
        said("One E", **nothing),
        said("One", finish_reason="stop", stop_reason=" END"),
    )
    assert text(deltas) == "One"
    assert deltas[-1].finish_reason == "stop_word"
    ended = read(theirs(API), said("One", **nothing), said("One two", finish_reason="stop", stop_reason="None"))
    assert (text(ended), ended[-1].finish_reason) == ("One two", "stop")


def test_the_llm_api_tells_moments_as_text() -> None:
    answer = theirs(API, return_perf_metrics=True)
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    answer.add_response(
        said(
            "One",
            finish_reason="length",
            **dict(zip(names, map(str, (10**9, 2 * 10**9, 3 * 10**9, 5 * 10**9)), strict=True)),
        )
    )
    assert answer.server_timings == ServerTimings(1.0, 2.0, 4.0)
    with raises(InflightError, "answer_damaged", naming="soon"):
        theirs(API, return_perf_metrics=True).add_response(
            said("One", finish_reason="length", **dict.fromkeys(names, "soon"))
        )


@pytest.mark.parametrize(
    "told", [[(-0.5,), (-0.5, -0.25), (-0.5, -0.25, -1.0)], [(-0.5,), (-0.25,), (-1.0,)]], ids=["all so far", "new"]
)
def test_log_probs_are_those_of_the_new_tokens_whichever_come(told: list[tuple[float, ...]]) -> None:
    answer = theirs(return_log_probs=True)
    sums = (-0.5, -0.75, -1.75)
    deltas = [
        answer.add_response(said("x", output_log_probs=values, cum_log_probs=(total,)))
        for values, total in zip(told, sums, strict=True)
    ]
    assert [delta.log_probs for delta in deltas] == [(-0.5,), (-0.25,), (-1.0,)]
    assert answer.cumulative_log_prob == -1.75


def test_after_its_own_end_an_answer_takes_no_more() -> None:
    with raises(InflightError, "answer_damaged"):
        read(theirs(), Response(True, text_output="One"), said("more"))
    answer = theirs(sampling=Sampling(stop=(".",)))
    answer.add_response(said("One."))
    assert answer.add_response(said("more")) == Delta("")  # the stream is being closed

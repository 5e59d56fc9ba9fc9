"""`tensorrt_llm_bls` says what the ensemble says, whichever way it is asked, and some things that only it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.fixtures.server import STEP_SECONDS
from tests.fixtures.waiting import wait_until
from tests.serving.bls.bls_requests import BLS, PROMPTS, answers, ask, of_both, same, told, words
from tests.serving.metrics_page import page_when
from tests.serving.raw_requests import GrpcConnection, TimedResponse, generate, generate_stream, request

FIGURES = ["arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"]
"""In the order in which they come."""
SERVERS = ["paced_server", "demo_server", "foreign_server"]
ATTEMPTS = 5
"""To see an answer come bit by bit, on a machine that is busy now and then."""
MOST_KEPT = 224
"""Requests that may keep a thread of the model's, which are whole ones to an engine that is not ours."""


@pytest.mark.parametrize("name", SERVERS)
def test_it_says_what_the_ensemble_says(serving: Callable[[str], Server], name: str) -> None:
    whole = {"stream": False, "exclude_input_in_output": True}
    several: list[dict[str, Any]] = [{}, {"stream": False}, whole, {"end_id": -1}]
    asked = [(prompt, values) for values in several for prompt in PROMPTS]
    found = same(serving(name), 25, asked, in_turn=name == "foreign_server")
    assert all(text for text, *_ in found)
    assert found[:3] == found[6:9], "a whole answer is the streamed one"


def test_a_stream_comes_as_it_is_made_and_only_its_last_response_says_how_it_ended(paced_server: Server) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        for _ in range(ATTEMPTS):
            (theirs,), (ours,) = of_both(connection, 40, [(PROMPTS[0], {})])
            assert told(ours) == told(theirs)
            assert len(ours) <= 40
            assert [response.finish_reason for response in ours] == [None] * (len(ours) - 1) + ["length"]
            # One for each token, but for those that come together, or late, where the machine is busy.
            if len(ours) >= 8 and ours[0].at < ours[-1].at - 10 * STEP_SECONDS:
                return
    pytest.fail(f"{len(ours)} responses came within {ours[-1].at - ours[0].at} s")


def test_over_http_too(paced_server: Server) -> None:
    values = {"text_input": PROMPTS[1], "max_tokens": 15}
    address = paced_server.http_address
    status, whole = generate(address, {**values, "exclude_input_in_output": True}, BLS)
    streamed = [event for _, event in generate_stream(address, values, BLS)]
    assert (status, whole["text_output"]) == (200, "".join(event["text_output"] for event in streamed))
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "length"


def test_many_streams_run_at_once_and_are_not_mixed_up(paced_server: Server) -> None:
    prompts = [f"{number} {PROMPTS[number % 3]}" for number in range(40)]
    with GrpcConnection(paced_server.grpc_address) as connection:
        theirs = told(ask(connection, prompts[6], 30, "ensemble").finish())[0]
        calls = [ask(connection, prompt, 1500, request_id="same") for prompt in prompts]
        for call in calls:
            call.wait_for(8)
        assert not any(call.ended.is_set() for call in calls)
        while len(said := "".join(response.text for response in calls[6].responses)) < len(theirs):
            calls[6].wait_for(len(calls[6].responses) + 1)
        for call, prompt in zip(calls, prompts, strict=True):
            call.cancel()
            text = "".join(response.text for response in call.responses)
            assert len(text) > 3
            assert (prompt * 50).startswith(text)
    assert said.startswith(theirs)


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
def test_log_probabilities_go_with_the_tokens_that_are_said(serving: Callable[[str], Server], name: str) -> None:
    values: dict[str, Any] = {"return_log_probs": True, "stop_words": words("over")}
    asked = [(model, stream) for model in ("ensemble", BLS) for stream in (True, False)]
    with GrpcConnection(serving(name).grpc_address) as connection:
        found = answers(
            connection,
            *(((PROMPTS[0], 30, model), {**values, "stream": stream}) for model, stream in asked),
            in_turn=name == "foreign_server",
        )
    for responses, what in zip(found, asked, strict=True):
        count = responses[-1].count("num_output_tokens")
        each = np.concatenate([numbers(response, "output_log_probs") for response in responses])
        assert each.tolist() == [-0.5] * count, what
        assert numbers(responses[-1], "cum_log_probs").tolist() == [-0.5 * count], what


def numbers(response: TimedResponse, name: str) -> Any:
    return np.frombuffer(response.outputs[name], np.float32)


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_several_answers_and_several_prompts_are_told_apart(
    serving: Callable[[str], Server], name: str, stream: bool
) -> None:
    both = {
        "text_input": np.array([[text.encode()] for text in PROMPTS[:2]], np.object_),
        "max_tokens": np.array([[5], [12]], np.int32),
        "stream": np.array([[stream], [stream]]),
    }
    with GrpcConnection(serving(name).grpc_address) as connection:
        one, *several = answers(
            connection,
            ((PROMPTS[0], 6), {"stream": stream}),
            *(((PROMPTS[0], 6, model), {"num_return_sequences": 3, "stream": stream}) for model in ("ensemble", BLS)),
            in_turn=name == "foreign_server",
        )
        calls = [connection.send(request(model, both)) for model in ("ensemble", BLS)]
        theirs, ours = (texts_by(call.finish(), "batch_index") for call in calls)
    for responses in several:
        assert texts_by(responses, "sequence_index") == dict.fromkeys(range(3), texts_by(one, "")[0])
    assert ours == theirs
    assert set(ours) == {0, 1}


def texts_by(responses: list[TimedResponse], index: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for response in responses:
        key = response.count(index) if index else 0
        found[key] = found.get(key, "") + response.text
    return found


@pytest.mark.parametrize("values", [{}, {"stop_words": words("brown")}])
def test_all_beams_come_in_one_response(paced_server: Server, values: dict[str, Any]) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        theirs, ours = (
            ask(connection, PROMPTS[0], 6, model, beam_width=3, stream=False, return_log_probs=True, **values).finish()
            for model in ("ensemble", BLS)
        )
    alone = "num_cached_tokens"  # which the ensemble has
    expected = [{name: value for name, value in each.outputs.items() if name != alone} for each in theirs]
    assert [response.outputs for response in ours] == expected


@pytest.mark.parametrize("name", ["paced_server", "foreign_server"])
def test_times_come_with_the_last_response_where_wanted(serving: Callable[[str], Server], name: str) -> None:
    several: list[dict[str, Any]] = [{}, {"stop_words": words("over")}, {"stream": False}]
    with GrpcConnection(serving(name).grpc_address) as connection:
        timed, plain = (
            answers(
                connection,
                *(((PROMPTS[0], 12), {**values, "return_perf_metrics": wanted}) for values in several),
                in_turn=name == "foreign_server",
            )
            for wanted in (True, False)
        )
    for (*before, last), (*_, without) in zip(timed, plain, strict=True):
        times = times_of(last)
        assert 0 < times[0] == min(times)
        assert times == sorted(times)
        for response in before:  # what is known is the engine's, and stays as it is
            assert times_of(response) in ([*times[:3], 0], times)
        assert not set(FIGURES) & set(without.outputs)


def times_of(response: TimedResponse) -> list[int]:
    return [int(np.frombuffer(response.outputs[name], np.int64)[0]) for name in FIGURES]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens must be a single value > 0; send one for each prompt [invalid_parameter]"),
        (
            {"text_input": b"\xff"},
            "text_input is not valid UTF-8: byte 0 of 1 can't be decoded; send UTF-8 [invalid_text]",
        ),
        ({"temperature": -1.0}, "temperature is -1; it must be 0 or more [invalid_parameter]"),
        ({"top_k": -1}, "top_k is -1; it must be 0 or more [invalid_parameter]"),
        ({"max_tokens": 10_000}, "the engine takes 4096; shorten the prompt or lower max_tokens [prompt_too_long]"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0; it must be between 1 and 256 [invalid_parameter]"),
        ({"return_context_logits": True}, "leave it out [unsupported_input]"),
        ({"use_draft_logits": np.array([[True]])}, "use_draft_logits is not supported"),
        ({"stop_words": words("a" * 2000)}, "stop_words holds a word of more than 1024 bytes or tokens"),
        ({"num_draft_tokens": np.array([[3]], np.int32)}, "this deployment has no draft model"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors_keep_their_sentence_and_their_code(
    paced_server: Server, values: dict[str, Any], sentence: str, stream: bool
) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        values = {"text_input": PROMPTS[0], "max_tokens": 5, "stream": stream, **values}
        assert sentence in connection.send(request(BLS, values)).error()
        assert told(ask(connection, PROMPTS[0], 2).finish())[0] == "The"


def test_a_misspelt_input_is_refused(paced_server: Server) -> None:
    status, answer = generate(paced_server.http_address, {"text_input": "a", "max_tokens": 1, "temprature": 1}, BLS)
    assert status == 400
    assert answer["error"].endswith("did you mean 'temperature'? [invalid_request]")


def test_where_each_request_keeps_a_thread_one_too_many_is_refused_at_once(foreign_server: Server) -> None:
    with GrpcConnection(foreign_server.grpc_address) as connection:
        calls = [ask(connection, PROMPTS[0], 4000, stream=False) for _ in range(MOST_KEPT + 6)]
        wait_until(lambda: sum(call.ended.is_set() for call in calls) >= 6)
        refused = [call.error() for call in calls if call.ended.is_set()]
        for call in calls:
            call.cancel()
        page_when(foreign_server, lambda page: page.quiet)
        assert told(ask(connection, PROMPTS[0], 3).finish())[1] == "length"
    words_of_upstream = f"Exceeds maximum queue size (Maximum queue size of {MOST_KEPT} has been reached)"
    assert refused == [f"{words_of_upstream}; send the request again later [overloaded]"] * 6

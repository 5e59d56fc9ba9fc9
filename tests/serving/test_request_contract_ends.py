"""How answers end: stop words, end tokens, `stop`, deadlines; and who waits: priorities and the queue's bound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inflight.deploy.repository import DeploymentOptions
from inflight.deploy.server import Server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import ENDLESS, paced
from tests.serving.replies import (
    BLS,
    DIRECT,
    ENSEMBLE,
    MODELS,
    TEXT_MODELS,
    ask,
    ids_of,
    message,
    prompt_for,
    refusal,
    stream_of,
    text_of,
    whole,
    words,
)
from tests.serving.streams import PATIENCE, Call, Grpc, Response, generate, generate_stream, request

pytestmark = pytest.mark.slow  # some of these do not pass yet: what they ask for is being built

PROMPT = "The quick brown fox"
DUMMIES: dict[str, Any] = {"input_ids": np.zeros((1, 1), np.int32), "input_lengths": 0, "request_output_len": 0}
"""What upstream's clients send along with `stop`."""


@pytest.fixture(scope="module")
def narrow_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Runs one request at a time, and two may wait."""
    wide = paced()
    options = DeploymentOptions(
        kv_cache_tokens=wide.kv_cache_tokens, max_num_sequences=1, max_queue_size=2, parameters=wide.parameters
    )
    with Server(tiny_engine("llama"), options) as running:
        yield running


def stop(server: Server, request_id: str) -> None:
    """Send `stop`; it gets one response, without anything."""
    (reply,) = stream_of(server, request(DIRECT, {**DUMMIES, "stop": True}, request_id))
    assert (dict(reply.tensors), reply.error, reply.final) == ({}, None, True)


def open_stream(connection: Grpc, server: Server, model: str, request_id: str, count: int, **values: Any) -> Call:
    prompt = prompt_for(server, model, PROMPT)
    return connection.send(message(model, prompt, count, request_id, stream=True, **values))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop_words", "text"),
    [
        (words(" brown"), "The quick"),
        (words("ick br"), "The qu"),  # begins within a token and ends within the next
        (words("xThe q", "never"), "The quick brown fo"),  # straddles the answer's second round
        (words(" fox", " quick"), "The"),  # the first to come, not the first in the list
        (words("The"), ""),
    ],
    ids=["a token", "straddling", "across a round", "several", "at once"],
)
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_stop_word_ends_the_text_and_is_cut(
    paced_server: Server, model: str, stop_words: Any, text: str, stream: bool
) -> None:
    found = ask(paced_server, model, PROMPT, 20, stop_words=stop_words, stream=stream, exclude_input_in_output=True)
    assert whole(found, model) == text
    assert found[-1].finish_reason == "stop_word"
    assert found[-1].final


@pytest.mark.parametrize("stop_words", [words(""), words("", ""), np.zeros((1, 0), np.object_), words("absent")])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_stop_word_that_does_not_come_changes_nothing(paced_server: Server, model: str, stop_words: Any) -> None:
    with_words = ask(paced_server, model, PROMPT, 12, stop_words=stop_words, stream=True)
    assert whole(with_words, model) == whole(ask(paced_server, model, PROMPT, 12, stream=True), model)
    assert with_words[-1].finish_reason == "length"


@pytest.mark.parametrize("stop_words", [["ick br"], "ick br", ["absent", "ick br"], ["", "ick br"]])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_stop_words_over_http_are_a_list_or_a_string(paced_server: Server, model: str, stop_words: Any) -> None:
    body = {"text_input": PROMPT, "max_tokens": 12, "stop_words": stop_words, "exclude_input_in_output": True}
    status, answer = generate(paced_server.http_address, body, model)
    assert (status, answer["text_output"], answer["finish_reason"]) == (200, "The qu", "stop_word")
    streamed = [event for _, event in generate_stream(paced_server.http_address, body, model)]
    assert "".join(event["text_output"] for event in streamed) == "The qu"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_words_as_ids(paced_server: Server, stream: bool) -> None:
    prompt = ids_of(paced_server.engine, PROMPT)
    # Two words, [brown, fox] and [fox, The]: the ids in a row, and where each ends.
    listed = np.array([[[*prompt[3:5], prompt[4], prompt[1]], [2, 4, -1, -1]]], np.int32)
    values: dict[str, Any] = {"stop_words_list": listed, "stream": stream, "exclude_input_in_output": True}
    found = ask(paced_server, DIRECT, prompt, 20, **values)
    assert whole(found, DIRECT) == prompt[:3]
    assert found[-1].finish_reason == "stop_word"


def test_no_stop_words_as_upstreams_clients_say_it(paced_server: Server) -> None:
    none = np.array([[[0], [-1]]], np.int32)
    found = ask(paced_server, DIRECT, ids_of(paced_server.engine, PROMPT), 6, stop_words_list=none, bad_words_list=none)
    assert found[-1].finish_reason == "length"


@pytest.mark.parametrize("name", ["min_tokens", "min_length"])
@pytest.mark.parametrize("model", MODELS)
def test_an_end_token_ends_the_answer_but_not_before_the_least_length(
    paced_server: Server, model: str, name: str
) -> None:
    ids = ids_of(paced_server.engine, PROMPT)
    prompt = prompt_for(paced_server, model, PROMPT)
    values: dict[str, Any] = {"end_id": ids[2], "exclude_input_in_output": True}
    (short,) = ask(paced_server, model, prompt, 20, **values)
    values[name] = 4
    (longer,) = ask(paced_server, model, prompt, 20, **values)
    told = [ids[:2], [*ids, *ids[:2]]]
    if model != DIRECT:
        assert [short.text, longer.text] == [text_of(paced_server.engine, tuple(one)) for one in told]
    else:
        assert [short.token_ids, longer.token_ids] == told
    assert (short.finish_reason, longer.finish_reason) == ("stop", "stop")
    assert longer.number("num_output_tokens") == 7


@pytest.mark.parametrize("model", [ENSEMBLE, DIRECT])
def test_the_newer_name_of_the_least_length_counts(paced_server: Server, model: str) -> None:
    end = ids_of(paced_server.engine, PROMPT)[0]
    prompt = prompt_for(paced_server, model, PROMPT)
    (reply,) = ask(paced_server, model, prompt, 20, end_id=end, min_tokens=1, min_length=15)
    assert reply.number("num_output_tokens") == 5


def test_the_older_name_of_the_seed(demo_server: Server) -> None:
    values: dict[str, Any] = {"temperature": 3.0, "top_p": 1.0, "stream": True}
    seeds: list[dict[str, Any]] = [{"seed": 5}, {"random_seed": 5}, {"random_seed": 6}]
    by_newer, by_older, by_another = (
        whole(ask(demo_server, ENSEMBLE, "Product:", 24, **values, **seed), ENSEMBLE) for seed in seeds
    )
    assert by_newer == by_older
    assert by_newer != by_another


@pytest.mark.parametrize("model", MODELS)
def test_stop_ends_what_runs_with_what_it_has_said(paced_server: Server, model: str) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        call = open_stream(connection, paced_server, model, f"to stop {model}", 1900)
        call.wait_for(3)
        stop(paced_server, f"to stop {model}")
        responses = call.finish()
    assert [response.error for response in responses] == [None] * len(responses)
    assert responses[-1].finish_reason == "cancelled"
    assert 3 <= responses[-1].count("num_output_tokens") < 1900


def test_stop_ends_a_whole_answer_with_what_it_would_have_said(paced_server: Server) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        prompt = ids_of(paced_server.engine, PROMPT)
        call = connection.send(message(DIRECT, prompt, 1900, "whole", exclude_input_in_output=True))
        time.sleep(0.5)
        stop(paced_server, "whole")
        (response,) = call.finish()
    assert response.finish_reason == "cancelled"
    assert 0 < len(response.token_ids) < 1900


def test_stop_ends_every_answer_to_a_request(paced_server: Server) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        call = open_stream(connection, paced_server, DIRECT, "several", 1900, num_return_sequences=2)
        call.wait_for(4)
        stop(paced_server, "several")
        ends = [response.finish_reason for response in call.finish() if response.finish_reason]
    assert ends == ["cancelled"] * 2


def test_stop_of_an_unknown_id_is_no_error_and_without_an_id_it_is(paced_server: Server) -> None:
    stop(paced_server, "nobody")
    (reply,) = stream_of(paced_server, request(DIRECT, {**DUMMIES, "stop": True}))
    assert reply.error is not None
    assert "Trying to stop a request but request ID is not provided" in reply.error


def test_stop_ends_one_that_waits(narrow_server: Server) -> None:
    with Grpc(narrow_server.grpc_address) as connection:
        running = open_stream(connection, narrow_server, DIRECT, "running", ENDLESS)
        running.wait_for(1)
        waiting = open_stream(connection, narrow_server, DIRECT, "waiting", 3)
        time.sleep(0.3)
        stop(narrow_server, "waiting")
        (response,) = waiting.finish()
        assert (response.finish_reason, response.token_ids) == ("cancelled", [])
        stop(narrow_server, "running")
        running.finish()


@pytest.mark.parametrize("model", MODELS)
def test_a_deadline_ends_what_runs_with_what_it_has_said(paced_server: Server, model: str) -> None:
    with Grpc(paced_server.grpc_address) as connection:
        began = time.monotonic()
        responses = open_stream(connection, paced_server, model, "", 1900, deadline_ms=1500).finish()
    assert responses[-1].finish_reason == "deadline"
    assert 0 < responses[-1].count("num_output_tokens") < 1900
    assert time.monotonic() - began >= 1.4


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_answer_ends_at_its_deadline_with_what_it_would_have_said(paced_server: Server, model: str) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    (reply,) = ask(paced_server, model, prompt, 1900, deadline_ms=1500)
    assert reply.finish_reason == "deadline"
    assert 0 < reply.number("num_output_tokens") < 1900


@pytest.mark.parametrize("model", MODELS)
def test_a_deadline_ends_what_waits_and_it_never_runs(narrow_server: Server, model: str) -> None:
    with Grpc(narrow_server.grpc_address) as connection:
        running = open_stream(connection, narrow_server, DIRECT, "running", ENDLESS)
        running.wait_for(1)
        prompt = prompt_for(narrow_server, model, PROMPT)
        (reply,) = ask(narrow_server, model, prompt, 5, deadline_ms=400, stream=True, return_perf_metrics=True)
        assert (reply.finish_reason, reply.number("num_output_tokens")) == ("deadline", 0)
        assert reply.number("first_scheduled_time_ns") == 0
        assert not running.ended.is_set()
        stop(narrow_server, "running")
        running.finish()


@pytest.mark.parametrize("model", MODELS)
def test_who_has_the_higher_priority_leaves_the_queue_first(narrow_server: Server, model: str) -> None:
    with Grpc(narrow_server.grpc_address) as connection:
        running = open_stream(connection, narrow_server, DIRECT, "running", ENDLESS)
        running.wait_for(1)
        early = open_stream(connection, narrow_server, model, "", 4, priority=-1)
        time.sleep(0.5)
        late = open_stream(connection, narrow_server, model, "", 4, priority=7)
        time.sleep(0.5)
        stop(narrow_server, "running")
        ends = [call.finish()[-1] for call in (running, early, late)]
    assert ends[2].at < ends[1].at
    assert [end.finish_reason for end in ends] == ["cancelled", "length", "length"]


@pytest.mark.parametrize("model", MODELS)
def test_over_the_queues_bound_a_request_is_refused_and_the_others_go_on(narrow_server: Server, model: str) -> None:
    with Grpc(narrow_server.grpc_address) as connection:
        running = open_stream(connection, narrow_server, DIRECT, "running", ENDLESS)
        running.wait_for(1)
        calls = [open_stream(connection, narrow_server, model, f"waiting {number}", 3) for number in range(5)]
        refused = [ended for call in calls if (ended := _refused(call))]
        assert len(refused) == 3
        for response in refused:
            assert response.error is not None
            assert "Exceeds maximum queue size" in response.error
        stop(narrow_server, "running")
        running.finish()
        taken = [call.finish() for call in calls if call.responses[:1] not in [[one] for one in refused]]
        assert [responses[-1].finish_reason for responses in taken] == ["length"] * 2
        assert ask(narrow_server, DIRECT, ids_of(narrow_server.engine, PROMPT), 2)[-1].finish_reason == "length"


def _refused(call: Call) -> Response | None:
    """The refusal of a request that is not taken, which comes soon; None for one that waits."""
    call.ended.wait(PATIENCE / 30)
    return call.responses[0] if call.ended.is_set() else None


@pytest.mark.parametrize("model", [ENSEMBLE, BLS])
def test_over_the_queues_bound_http_says_so_too(narrow_server: Server, model: str) -> None:
    with Grpc(narrow_server.grpc_address) as connection:
        running = open_stream(connection, narrow_server, DIRECT, "running", ENDLESS)
        running.wait_for(1)
        waiting = [open_stream(connection, narrow_server, DIRECT, "waiting", ENDLESS) for _ in range(2)]
        time.sleep(0.5)
        status, answer = generate(narrow_server.http_address, {"text_input": PROMPT, "max_tokens": 2}, model)
        assert status == 503
        assert "Exceeds maximum queue size" in answer["error"]
        stop(narrow_server, "waiting")
        stop(narrow_server, "running")
        for call in (running, *waiting):
            call.finish()


def test_a_draft_is_taken_as_far_as_it_is_right(paced_server: Server) -> None:
    prompt = ids_of(paced_server.engine, PROMPT)
    right, wrong = prompt[:3], [*prompt[:2], 7, 7]
    values: dict[str, Any] = {"exclude_input_in_output": True, "return_perf_metrics": True}
    for draft, accepted in ((right, 3), (wrong, 2)):
        (reply,) = ask(paced_server, DIRECT, prompt, 9, draft_input_ids=np.array([draft], np.int32), **values)
        assert reply.token_ids == [*prompt, *prompt][: accepted + 1]
        assert reply.number("total_draft_tokens") == len(draft)
        assert reply.number("total_accepted_draft_tokens") == accepted
        assert reply.number("acceptance_rate") == pytest.approx(accepted / len(draft))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"deadline_ms": 0}, "deadline_ms is 0; it must be 1 or more"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0; it must be between 1 and"),
        ({"num_return_sequences": 2, "beam_width": 2}, "can't both be above 1"),
        ({"beam_width": 0}, "beam_width is 0"),
        ({"lora_task_id": 3}, "lora_task_id is 3, and the deployment has no such adapter"),
        ({"guided_decoding_guide_type": "prose"}, "guided_decoding_guide_type is 'prose'; it must be one of json"),
        ({"guided_decoding_guide_type": "regex"}, "guided_decoding_guide is missing"),
        ({"guided_decoding_guide": "a+"}, "guided_decoding_guide goes with guided_decoding_guide_type"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
@pytest.mark.parametrize("model", MODELS)
def test_values_that_can_not_be_meant_are_refused(
    paced_server: Server, model: str, values: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(paced_server, model, prompt_for(paced_server, model, PROMPT), 4, **values)

"""What comes back: several answers, several prompts, beams, log probabilities, counts, moments, and whose tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from inflight.runtime.engine.fake import LOG_PROB
from tests.serving.model_replies import (
    BLS,
    DIRECT,
    ENSEMBLE,
    MODELS,
    TEXT_MODELS,
    Reply,
    ask,
    ids_of,
    message,
    prompt_for,
    rows,
    stream_of,
    text_of,
    whole,
)
from tests.serving.raw_requests import generate, generate_stream

PROMPT = "The quick brown fox"
SHORT = "hello"
UNKNOWN = -1
MOMENTS = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
FIGURES = {
    *MOMENTS,
    *("kv_cache_alloc_total_blocks", "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks"),
    *("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"),
}


def answer_ids(server: Server, prompt: str, count: int) -> tuple[int, ...]:
    """What the fake engine says: the prompt's tokens over and over."""
    ids = ids_of(server.engine, prompt)
    return tuple(ids[position % len(ids)] for position in range(count))


def expected(server: Server, model: str, prompt: str, count: int, *, echo: bool = False) -> Any:
    """The whole answer as a model gives it: text, or token ids; with the prompt before it where it is echoed."""
    told = (*(ids_of(server.engine, prompt) if echo else ()), *answer_ids(server, prompt, count))
    return list(told) if model == DIRECT else text_of(server.engine, told)


def check_final(found: list[Reply]) -> None:
    """Only the very last response is marked as the last, and every answer's end tells its reason."""
    assert [reply.final for reply in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize("model", MODELS)
def test_several_answers_come_as_a_response_each_with_its_number(paced_server: Server, model: str) -> None:
    found = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 6, num_return_sequences=3)
    check_final(found)
    assert sorted(reply.number("sequence_index") for reply in found) == [0, 1, 2]
    assert [reply.finish_reason for reply in found] == ["length"] * 3
    for reply in found:
        assert whole([reply], model) == expected(paced_server, model, PROMPT, 6, echo=True)


@pytest.mark.parametrize("model", MODELS)
def test_several_streams_of_one_request_can_be_told_apart(paced_server: Server, model: str) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    found = ask(paced_server, model, prompt, 7, num_return_sequences=2, stream=True)
    check_final(found)
    for sequence in (0, 1):
        mine = [reply for reply in found if reply.number("sequence_index") == sequence]
        assert len(mine) > 1
        assert whole(mine, model) == expected(paced_server, model, PROMPT, 7)
        assert [reply.finish_reason for reply in mine] == [None] * (len(mine) - 1) + ["length"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_several_texts_in_one_request_are_answered_each_on_its_own(
    paced_server: Server, model: str, stream: bool
) -> None:
    found = ask(paced_server, model, rows(SHORT, PROMPT), rows(9, 4), stream=rows(stream, stream, dtype=bool))
    check_final(found)
    for row, (prompt, count) in enumerate([(SHORT, 9), (PROMPT, 4)]):
        mine = [reply for reply in found if reply.number("batch_index") == row]
        assert whole(mine, model) == expected(paced_server, model, prompt, count, echo=not stream)
        assert mine[-1].number("num_input_tokens") == len(ids_of(paced_server.engine, prompt))
        assert mine[-1].number("num_output_tokens") == count


def test_prompts_of_several_lengths_come_padded(paced_server: Server) -> None:
    short, long = (ids_of(paced_server.engine, prompt) for prompt in (SHORT, "one two three"))
    padded = np.array([[*short, *[0] * (len(long) - len(short))], long], np.int32)
    lengths = rows(len(short), len(long))
    found = ask(
        paced_server, DIRECT, padded, rows(3, 5), input_lengths=lengths, exclude_input_in_output=rows(1, 1, dtype=bool)
    )
    check_final(found)
    by_row = {int(reply.number("batch_index")): reply.token_ids for reply in found}
    assert by_row == {
        0: list(answer_ids(paced_server, SHORT, 3)),
        1: list(answer_ids(paced_server, "one two three", 5)),
    }


@pytest.mark.parametrize("model", MODELS)
def test_every_answer_to_every_prompt(paced_server: Server, model: str) -> None:
    prompt: Any = rows(SHORT, PROMPT)
    if model == DIRECT:  # both have five tokens
        prompt = np.array([ids_of(paced_server.engine, text) for text in (SHORT, PROMPT)], np.int32)
    lengths = {"input_lengths": rows(5, 5)} if model == DIRECT else {}
    found = ask(paced_server, model, prompt, rows(4, 4), num_return_sequences=rows(2, 2), **lengths)
    check_final(found)
    tags = sorted((reply.number("batch_index"), reply.number("sequence_index")) for reply in found)
    assert tags == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_beams_come_together_as_texts(paced_server: Server, model: str) -> None:
    (reply,) = ask(paced_server, model, PROMPT, 4, beam_width=3, exclude_input_in_output=True, return_log_probs=True)
    ids = answer_ids(paced_server, PROMPT, 7)
    assert reply.texts == [text_of(paced_server.engine, ids[beam : beam + 4]) for beam in range(3)]
    check_beam_log_probs(reply, beams=3, length=4)


def test_beams_come_together_as_ids(paced_server: Server) -> None:
    prompt = ids_of(paced_server.engine, PROMPT)
    (reply,) = ask(paced_server, DIRECT, prompt, 4, beam_width=3, return_log_probs=True)
    ids = list(answer_ids(paced_server, PROMPT, 7))
    assert reply.tensors["output_ids"].tolist() == [[[*prompt, *ids[beam : beam + 4]] for beam in range(3)]]
    assert reply.tensors["sequence_length"].tolist() == [[len(prompt) + 4] * 3]
    check_beam_log_probs(reply, beams=3, length=4)


def check_beam_log_probs(reply: Reply, beams: int, length: int) -> None:
    assert reply.tensors["output_log_probs"].shape == (1, beams, length)
    assert reply.tensors["cum_log_probs"].tolist() == [[LOG_PROB * (beam + 1) * length for beam in range(beams)]]


def test_beams_that_ended_early_are_padded(paced_server: Server) -> None:
    prompt = ids_of(paced_server.engine, PROMPT)
    end = prompt[3]
    (reply,) = ask(paced_server, DIRECT, prompt, 9, beam_width=2, end_id=end, exclude_input_in_output=True)
    assert reply.tensors["sequence_length"].tolist() == [[3, 2]]
    assert reply.tensors["output_ids"].tolist() == [[prompt[:3], [*prompt[1:3], -1]]]
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize("model", MODELS)
def test_log_probs_of_a_whole_answer(paced_server: Server, model: str) -> None:
    (reply,) = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 5, return_log_probs=True)
    assert reply.tensors["output_log_probs"].tolist() == [[[LOG_PROB] * 5]]
    assert reply.tensors["cum_log_probs"].tolist() == [[5 * LOG_PROB]]


@pytest.mark.parametrize("model", MODELS)
def test_log_probs_of_a_stream_come_with_their_tokens_and_add_up(paced_server: Server, model: str) -> None:
    found = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 5, return_log_probs=True, stream=True)
    counts = [reply.tensors["output_log_probs"].shape for reply in found]
    assert [shape[:2] for shape in counts] == [(1, 1)] * len(found)
    assert np.cumsum([shape[2] for shape in counts])[-1] == 5
    sums = [reply.number("cum_log_probs") for reply in found]
    assert sums == [LOG_PROB * count for count in np.cumsum([shape[2] for shape in counts])]


@pytest.mark.parametrize("model", MODELS)
def test_nobody_gets_log_probs_and_figures_who_did_not_ask(paced_server: Server, model: str) -> None:
    (reply,) = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 2)
    assert not {"output_log_probs", "cum_log_probs", *FIGURES} & set(reply.tensors)


@pytest.mark.parametrize("model", MODELS)
def test_the_moments_of_an_answer_are_in_order(paced_server: Server, model: str) -> None:
    (reply,) = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 40, return_perf_metrics=True)
    moments = [reply.number(name) for name in MOMENTS]
    assert all(0 < earlier < later for earlier, later in pairwise(moments))
    assert reply.number("kv_cache_alloc_total_blocks") == 2  # 45 tokens in blocks of 32
    assert reply.number("kv_cache_alloc_new_blocks") == reply.number("kv_cache_reused_blocks") == UNKNOWN
    speculation = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")
    assert [reply.number(name) for name in speculation] == [0, 0, 0]


@pytest.mark.parametrize("model", MODELS)
def test_every_response_of_a_stream_has_figures_and_the_last_has_them_all(paced_server: Server, model: str) -> None:
    found = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 4, return_perf_metrics=True, stream=True)
    assert len(found) > 1
    assert [FIGURES - set(reply.tensors) for reply in found] == [set()] * len(found)
    assert found[0].number("last_token_time_ns") == 0
    known = [reply.number("first_token_time_ns") for reply in found]
    assert min(known) > 0
    moments = [found[-1].number(name) for name in MOMENTS]
    assert all(0 < earlier < later for earlier, later in pairwise(moments))


@pytest.mark.parametrize("model", [ENSEMBLE, DIRECT])
def test_a_stream_knows_from_its_first_chunk_when_it_was_scheduled(paced_server: Server, model: str) -> None:
    found = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 4, return_perf_metrics=True, stream=True)
    scheduled = [reply.number("first_scheduled_time_ns") for reply in found]
    assert scheduled[0] > 0
    assert scheduled == [scheduled[0]] * len(found)


@pytest.mark.parametrize("asked", [{}, {"return_num_input_tokens": True, "return_num_output_tokens": True}])
@pytest.mark.parametrize("model", MODELS)
def test_counts_come_with_the_last_response(paced_server: Server, model: str, asked: dict[str, Any]) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    *others, last = ask(paced_server, model, prompt, 4, stream=True, **asked)
    assert last.number("num_input_tokens") == 5
    assert last.number("num_output_tokens") == 4
    assert not any("num_output_tokens" in reply.tensors for reply in others)


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_answer_has_the_prompt_before_it_unless_excluded(paced_server: Server, model: str) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    (with_prompt,) = ask(paced_server, model, prompt, 5)
    (without,) = ask(paced_server, model, prompt, 5, exclude_input_in_output=True)
    assert whole([with_prompt], model) == expected(paced_server, model, PROMPT, 5, echo=True)
    assert whole([without], model) == expected(paced_server, model, PROMPT, 5)


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_never_has_the_prompt(paced_server: Server, model: str) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    found = ask(paced_server, model, prompt, 5, stream=True, exclude_input_in_output=False)
    check_final(found)
    assert whole(found, model) == expected(paced_server, model, PROMPT, 5)


def test_only_outputs_that_are_asked_for_come(paced_server: Server) -> None:
    sent = message(DIRECT, ids_of(paced_server.engine, PROMPT), 3, return_log_probs=True)
    for name in ("output_ids", "sequence_length", "cum_log_probs"):
        sent.outputs.add(name=name)
    (reply,) = stream_of(paced_server, sent)
    assert list(reply.tensors) == ["output_ids", "sequence_length", "cum_log_probs"]


def test_ids_stand_first_among_the_outputs(paced_server: Server) -> None:
    # Upstream's benchmark takes the first output for the ids, whatever its name.
    (reply,) = ask(paced_server, DIRECT, ids_of(paced_server.engine, PROMPT), 3, return_log_probs=True)
    assert list(reply.tensors)[:2] == ["output_ids", "sequence_length"]


@pytest.mark.parametrize("model", [ENSEMBLE, BLS])
def test_over_http_numbers_are_plain_values(paced_server: Server, model: str) -> None:
    wanted = {"return_log_probs": True, "return_perf_metrics": True, "exclude_input_in_output": True}
    status, answer = generate(
        paced_server.http_address, {"text_input": PROMPT, "max_tokens": 4, "id": "mine", **wanted}, model
    )
    assert (status, answer["id"]) == (200, "mine")
    assert answer["text_output"] == expected(paced_server, model, PROMPT, 4)
    assert answer["output_log_probs"] == [LOG_PROB] * 4
    assert answer["cum_log_probs"] == 4 * LOG_PROB
    assert (answer["finish_reason"], answer["num_input_tokens"], answer["num_output_tokens"]) == ("length", 5, 4)
    assert answer["first_token_time_ns"] > answer["arrival_time_ns"] > 0


@pytest.mark.parametrize("model", [ENSEMBLE, BLS])
def test_beams_over_http_are_a_list_of_texts(paced_server: Server, model: str) -> None:
    status, answer = generate(
        paced_server.http_address, {"text_input": PROMPT, "max_tokens": 4, "beam_width": 2}, model
    )
    assert status == 200
    assert len(answer["text_output"]) == 2


@pytest.mark.parametrize("model", [ENSEMBLE, BLS])
def test_a_stream_over_http_ends_with_the_reason(paced_server: Server, model: str) -> None:
    body = {"text_input": PROMPT, "max_tokens": 6, "num_return_sequences": 2}
    found = [event for _, event in generate_stream(paced_server.http_address, body, model)]
    for sequence in (0, 1):
        mine = [event for event in found if event["sequence_index"] == sequence]
        assert "".join(event["text_output"] for event in mine) == expected(paced_server, model, PROMPT, 6)
        assert mine[-1]["finish_reason"] == "length"

"""What comes back: several answers, several prompts, beams, log probabilities, counts, moments, and whose tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from inflight.runtime.engine.fake import LOG_PROB
from tests.serving.model_replies import (
    DIRECT,
    ENSEMBLE,
    MODELS,
    Reply,
    ask,
    ids_of,
    message,
    prompt_for,
    rows,
    stream_of,
    text_of,
    together,
    whole,
    words,
)
from tests.serving.raw_requests import generate, generate_stream

PROMPT = "The quick brown fox"
SHORT = "hello"
UNKNOWN = -1
COUNT = "num_responses"
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_several_answers_to_one_request_are_told_apart_by_their_number(
    paced_server: Server, model: str, stream: bool
) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    found = ask(paced_server, model, prompt, 7, num_return_sequences=2, stream=stream)
    check_final(found)
    for sequence in (0, 1):
        mine = [reply for reply in found if reply.number("sequence_index") == sequence]
        assert (len(mine) > 1) == stream
        assert whole(mine, model) == expected(paced_server, model, PROMPT, 7, echo=not stream)
        assert [reply.finish_reason for reply in mine] == [None] * (len(mine) - 1) + ["length"]


@pytest.mark.parametrize("stream", [False, True])
def test_several_texts_in_one_request_are_answered_each_on_its_own(paced_server: Server, stream: bool) -> None:
    found = ask(paced_server, ENSEMBLE, rows(SHORT, PROMPT), rows(9, 4), stream=rows(stream, stream, dtype=bool))
    check_final(found)
    for row, (prompt, count) in enumerate([(SHORT, 9), (PROMPT, 4)]):
        mine = [reply for reply in found if reply.number("batch_index") == row]
        assert whole(mine, ENSEMBLE) == expected(paced_server, ENSEMBLE, prompt, count, echo=not stream)
        assert mine[-1].number("num_input_tokens") == len(ids_of(paced_server.engine, prompt))
        assert mine[-1].number("num_output_tokens") == count


def test_prompts_of_several_lengths_come_padded_and_get_all_their_answers(paced_server: Server) -> None:
    prompts = (SHORT, "one two three")
    short, long = (ids_of(paced_server.engine, prompt) for prompt in prompts)
    padded = np.array([[*short, *[0] * (len(long) - len(short))], long], np.int32)
    values = {"input_lengths": rows(len(short), len(long)), "num_return_sequences": rows(2, 2)}
    found = ask(paced_server, DIRECT, padded, rows(3, 5), exclude_input_in_output=rows(1, 1, dtype=bool), **values)
    check_final(found)
    by_number = {(reply.number("batch_index"), reply.number("sequence_index")): reply.token_ids for reply in found}
    assert by_number == {
        (row, sequence): list(answer_ids(paced_server, prompts[row], (3, 5)[row]))
        for row in (0, 1)
        for sequence in (0, 1)
    }


def test_beams_come_together(paced_server: Server) -> None:
    prompt, ids = ids_of(paced_server.engine, PROMPT), answer_ids(paced_server, PROMPT, 7)
    values: dict[str, Any] = {"beam_width": 3, "return_log_probs": True}
    (as_text,) = ask(paced_server, ENSEMBLE, PROMPT, 4, exclude_input_in_output=True, **values)
    assert as_text.texts == [text_of(paced_server.engine, ids[beam : beam + 4]) for beam in range(3)]
    (as_ids,) = ask(paced_server, DIRECT, prompt, 4, **values)
    assert as_ids.tensors["output_ids"].tolist() == [[[*prompt, *ids[beam : beam + 4]] for beam in range(3)]]
    assert as_ids.tensors["sequence_length"].tolist() == [[len(prompt) + 4] * 3]
    for reply in (as_text, as_ids):
        assert reply.tensors["output_log_probs"].shape == (1, 3, 4)
        assert reply.tensors["cum_log_probs"].tolist() == [[LOG_PROB * (beam + 1) * 4 for beam in range(3)]]
    body = {"text_input": PROMPT, "max_tokens": 4, "beam_width": 2}
    assert len(generate(paced_server.http_address, body)[1]["text_output"]) == 2


def test_beams_that_ended_early_are_padded(paced_server: Server) -> None:
    prompt = ids_of(paced_server.engine, PROMPT)
    end = prompt[3]
    (reply,) = ask(paced_server, DIRECT, prompt, 9, beam_width=2, end_id=end, exclude_input_in_output=True)
    assert reply.tensors["sequence_length"].tolist() == [[3, 2]]
    assert reply.tensors["output_ids"].tolist() == [[prompt[:3], [*prompt[1:3], -1]]]
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_log_probs_come_with_their_tokens_and_add_up(paced_server: Server, model: str, stream: bool) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    found = ask(paced_server, model, prompt, 5, return_log_probs=True, stream=stream)
    log_probs = [reply.tensors["output_log_probs"] for reply in found]
    assert [each.tolist() for each in log_probs] == [[[[LOG_PROB] * each.shape[2]]] for each in log_probs]
    counts = np.cumsum([each.shape[2] for each in log_probs])
    assert counts[-1] == 5
    assert [reply.tensors["cum_log_probs"].tolist() for reply in found] == [[[LOG_PROB * count]] for count in counts]


@pytest.mark.parametrize("model", MODELS)
def test_nobody_gets_what_was_not_asked_for(paced_server: Server, model: str) -> None:
    found = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 3, stream=True)
    unasked = {"output_log_probs", "cum_log_probs", "token_ids", *FIGURES}
    assert [unasked & set(reply.tensors) for reply in found] == [set()] * len(found)


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
    for name in ("first_token_time_ns", "first_scheduled_time_ns"):
        known = [reply.number(name) for reply in found]
        assert known[0] > 0
        assert known == [known[0]] * len(found)
    moments = [found[-1].number(name) for name in MOMENTS]
    assert all(0 < earlier < later for earlier, later in pairwise(moments))


@pytest.mark.parametrize("asked", [{}, {"return_num_input_tokens": True, "return_num_output_tokens": True}])
@pytest.mark.parametrize("model", MODELS)
def test_counts_come_with_the_last_response(paced_server: Server, model: str, asked: dict[str, Any]) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    *others, last = ask(paced_server, model, prompt, 4, stream=True, **asked)
    assert last.number("num_input_tokens") == 5
    assert last.number("num_output_tokens") == 4
    assert not any("num_output_tokens" in reply.tensors for reply in others)


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_answer_has_the_prompt_before_it_unless_excluded_and_a_stream_never(
    paced_server: Server, model: str
) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"exclude_input_in_output": False}, True),
        ({"exclude_input_in_output": True}, False),
        ({"exclude_input_in_output": False, "stream": True}, False),
    ]
    for values, echo in cases:
        found = ask(paced_server, model, prompt, 5, **values)
        check_final(found)
        assert whole(found, model) == expected(paced_server, model, PROMPT, 5, echo=echo)


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


def test_over_http_numbers_are_plain_values(paced_server: Server) -> None:
    wanted = {"return_log_probs": True, "return_perf_metrics": True, "exclude_input_in_output": True}
    status, answer = generate(
        paced_server.http_address, {"text_input": PROMPT, "max_tokens": 4, "id": "mine", **wanted}
    )
    assert (status, answer["id"]) == (200, "mine")
    assert answer["text_output"] == expected(paced_server, ENSEMBLE, PROMPT, 4)
    assert answer["output_log_probs"] == [LOG_PROB] * 4
    assert answer["cum_log_probs"] == 4 * LOG_PROB
    assert (answer["finish_reason"], answer["num_input_tokens"], answer["num_output_tokens"]) == ("length", 5, 4)
    assert answer["first_token_time_ns"] > answer["arrival_time_ns"] > 0


def test_a_stream_over_http_ends_with_the_reason(paced_server: Server) -> None:
    body = {"text_input": PROMPT, "max_tokens": 6, "num_return_sequences": 2}
    found = [event for _, event in generate_stream(paced_server.http_address, body)]
    for sequence in (0, 1):
        mine = [event for event in found if event["sequence_index"] == sequence]
        assert "".join(event["text_output"] for event in mine) == expected(paced_server, ENSEMBLE, PROMPT, 6)
        assert mine[-1]["finish_reason"] == "length"


CASES: list[dict[str, Any]] = [
    *({"stream": stream, **more} for stream in (True, False) for more in ({}, {"num_return_sequences": 3})),
    *({"stream": stream, "stop_words": words("lazy d", "zebra")} for stream in (True, False)),
    *({"stream": stream, "beam_width": 2} for stream in (True, False)),
    {"stream": False, "exclude_input_in_output": True},
    {"stream": True, "return_perf_metrics": True, "return_log_probs": True},
    {"stream": True, "return_perf_metrics": True, "stop_words": words("lazy d")},
]


@pytest.mark.parametrize("values", CASES, ids=lambda values: "-".join(values))
def test_each_answer_tells_its_responses_and_its_tokens(paced_server: Server, values: dict[str, Any]) -> None:
    """By which a client sees that it got its answer whole: both come from the last response of each, and only there."""
    told = {}
    prompt, asked = "The quick brown fox jumps over the lazy dog", {"return_token_ids": True, **values}
    sent = [message(model, prompt_for(paced_server, model, prompt), 20, **asked) for model in MODELS]
    for model, found in zip(MODELS, together(paced_server, *sent), strict=True):
        told[model] = list[list[int]]()
        for sequence in range(values.get("num_return_sequences", 1)):
            replies = [reply for reply in found if reply.tensors and number_of(reply) == sequence]
            assert [COUNT in reply.tensors for reply in replies] == [False] * (len(replies) - 1) + [True]
            assert replies[-1].number(COUNT) == len(replies)
            ids = [token_id for reply in replies for token_id in reply.tensors["token_ids"].ravel().tolist()]
            if "beam_width" not in values:
                assert len(ids) == replies[-1].number("num_output_tokens")
                if model == DIRECT and values["stream"]:
                    assert ids == [token_id for reply in replies for token_id in reply.token_ids]
            told[model].append(ids)
    assert "stop_words" in values or told[ENSEMBLE] == told[DIRECT]


def number_of(reply: Reply) -> int:
    return int(reply.tensors.get("sequence_index", np.zeros(1)).item())

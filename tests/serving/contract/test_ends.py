"""How answers end: stop words, end tokens, drafts; and values that no answer can come of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.serving.model_replies import (
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
    text_of,
    together,
    whole,
    words,
)
from tests.serving.raw_requests import generate, generate_stream

PROMPT = "The quick brown fox"

TOKEN = pytest.param(words(" brown"), "The quick", id="a token")
STRADDLING = pytest.param(words("ick br"), "The qu", id="straddling")
ACROSS_A_ROUND = pytest.param(words("xThe q", "never"), "The quick brown fo", id="across a round")
FIRST_OF_SEVERAL = pytest.param(words(" fox", " quick"), "The", id="several")
AT_ONCE = pytest.param(words("The"), "", id="at once")


@pytest.mark.parametrize(("stop_words", "text"), [TOKEN, STRADDLING, ACROSS_A_ROUND, FIRST_OF_SEVERAL, AT_ONCE])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_stop_word_ends_the_text_and_is_cut(paced_server: Server, model: str, stop_words: Any, text: str) -> None:
    """It may begin within a token and end within the next; the first to come counts, not the first in the list."""
    values: dict[str, Any] = {"stop_words": stop_words, "exclude_input_in_output": True}
    for found in together(
        paced_server, *(message(model, PROMPT, 20, stream=stream, **values) for stream in (False, True))
    ):
        assert whole(found, model) == text
        assert found[-1].finish_reason == "stop_word"
        assert found[-1].final


@pytest.mark.parametrize(
    "stop_words", [words(""), words("", ""), np.zeros((1, 0), np.object_), words("absent")], ids=[0, 1, 2, "absent"]
)
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_stop_word_that_does_not_come_changes_nothing(paced_server: Server, model: str, stop_words: Any) -> None:
    with_words, without = together(
        paced_server,
        message(model, PROMPT, 8, stop_words=stop_words, stream=True),
        message(model, PROMPT, 8, stream=True),
    )
    assert whole(with_words, model) == whole(without, model)
    assert with_words[-1].finish_reason == "length"


@pytest.mark.parametrize("stop_words", [["ick br"], "ick br", ["", "ick br"]])
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


@pytest.mark.parametrize(
    ("model", "name"), [(ENSEMBLE, "min_tokens"), (BLS, "min_length"), (DIRECT, "min_tokens"), (DIRECT, "min_length")]
)
def test_an_end_token_ends_the_answer_but_not_before_the_least_length(
    paced_server: Server, model: str, name: str
) -> None:
    ids = ids_of(paced_server.engine, PROMPT)
    prompt = prompt_for(paced_server, model, PROMPT)
    values: dict[str, Any] = {"end_id": ids[2], "exclude_input_in_output": True}
    (short,), (longer,) = together(
        paced_server, message(model, prompt, 20, **values), message(model, prompt, 20, **{**values, name: 4})
    )
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
        ({"guided_decoding_guide": "a+"}, "guided_decoding_guide requires guided_decoding_guide_type"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
@pytest.mark.parametrize("model", MODELS)
def test_values_that_can_not_be_meant_are_refused(
    paced_server: Server, model: str, values: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(paced_server, model, prompt_for(paced_server, model, PROMPT), 4, **values)

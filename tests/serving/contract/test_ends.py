"""How answers end: stop words, end tokens, guides; and values that no answer can come of."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.serving.model_replies import (
    DIRECT,
    ENSEMBLE,
    MODELS,
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


@pytest.mark.parametrize(
    ("stop_words", "text"),
    [
        pytest.param(words("ick br"), "The qu", id="straddling"),
        pytest.param(words("xThe q", "never"), "The quick brown fo", id="across a round"),
        pytest.param(words(" fox", " quick"), "The", id="the first to come"),
        pytest.param(words("The"), "", id="at once"),
        pytest.param(words("", "absent"), PROMPT * 4, id="none"),
    ],
)
def test_a_stop_word_ends_the_text_and_is_cut(paced_server: Server, stop_words: Any, text: str) -> None:
    """It may begin within a token and end within the next; the first to come counts, not the first in the list."""
    values: dict[str, Any] = {"stop_words": stop_words, "exclude_input_in_output": True}
    sent = (message(ENSEMBLE, PROMPT, 20, stream=stream, **values) for stream in (False, True))
    for found in together(paced_server, *sent):
        assert whole(found, ENSEMBLE) == text
        assert found[-1].finish_reason == ("length" if len(text) > 20 else "stop_word")
        assert found[-1].final


@pytest.mark.parametrize("stop_words", [["ick br"], "ick br", ["", "ick br"]])
def test_stop_words_over_http_are_a_list_or_a_string(paced_server: Server, stop_words: Any) -> None:
    body = {"text_input": PROMPT, "max_tokens": 12, "stop_words": stop_words, "exclude_input_in_output": True}
    status, answer = generate(paced_server.http_address, body)
    assert (status, answer["text_output"], answer["finish_reason"]) == (200, "The qu", "stop_word")
    streamed = [event for _, event in generate_stream(paced_server.http_address, body)]
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
    (short,), (longer,), (newer,) = together(
        paced_server,
        message(model, prompt, 20, **values),
        message(model, prompt, 20, **{**values, name: 4}),
        message(model, prompt, 20, **{**values, "min_tokens": 1, "min_length": 15}),  # the newer name counts
    )
    told = [ids[:2], [*ids, *ids[:2]], ids[:2]]
    if model != DIRECT:
        assert [short.text, longer.text, newer.text] == [text_of(paced_server.engine, tuple(one)) for one in told]
    else:
        assert [short.token_ids, longer.token_ids, newer.token_ids] == told
    assert (short.finish_reason, longer.finish_reason) == ("stop", "stop")
    assert longer.number("num_output_tokens") == 7


def test_the_older_name_of_the_seed(server: Server) -> None:
    values: dict[str, Any] = {"temperature": 3.0, "top_p": 1.0, "stream": True}
    seeds: list[dict[str, Any]] = [{"seed": 5}, {"random_seed": 5}, {"random_seed": 6}]
    by_newer, by_older, by_another = (
        whole(ask(server, ENSEMBLE, "Product:", 24, **values, **seed), ENSEMBLE) for seed in seeds
    )
    assert by_newer == by_older
    assert by_newer != by_another


GUIDES = [
    ("regex", "[0-9]{3}-[a-c]{2}", "[0-9]{3}-[a-c]{2}"),
    ("ebnf_grammar", 'root ::= "<" word ">"\nword ::= "yes" | "no"', "<yes>|<no>"),
    # Between the parts of an object any blanks may be, and this model writes nothing else there.
    ("json_schema", json.dumps({"enum": ["red", "blue"]}), '"red"|"blue"'),
]


@pytest.mark.parametrize(("guide_type", "guide", "pattern"), GUIDES)
def test_a_guide_holds_the_answer_to_its_form(server: Server, guide_type: str, guide: str, pattern: str) -> None:
    guides = {"guided_decoding_guide_type": guide_type, "guided_decoding_guide": guide}
    body = {"text_input": "Product: ", "max_tokens": 60, "bad_words": "", "exclude_input_in_output": True, **guides}
    status, answer = generate(server.http_address, body)
    assert status == 200
    assert re.fullmatch(pattern, answer["text_output"])


@pytest.mark.parametrize("model", MODELS)
def test_values_that_can_not_be_meant_are_refused(paced_server: Server, model: str) -> None:
    """Of those that the engine's process would find, and of those that are found before it."""
    prompt = prompt_for(paced_server, model, PROMPT)
    for values, sentence in (
        ({"deadline_ms": 0}, "deadline_ms is 0; it must be 1 or more"),
        ({"num_return_sequences": 2, "beam_width": 2}, "can't both be above 1"),
        ({"lora_task_id": 3}, "lora_task_id is 3, and the deployment has no such adapter"),
        ({"guided_decoding_guide": "a+"}, "guided_decoding_guide requires guided_decoding_guide_type"),
    ):
        assert sentence in refusal(paced_server, model, prompt, 4, **values)

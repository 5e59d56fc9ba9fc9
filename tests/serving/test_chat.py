"""Conversations through the served models: the tokens that transformers makes of them, and refusals by one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.serving.model_replies import ENSEMBLE, ask, once, refusal, rows
from tests.serving.raw_requests import generate, request

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Tea, please. “чай” 🍵"}],
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}],
]


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@pytest.fixture(scope="module")
def expected(paced_server: Server) -> Callable[..., list[int]]:
    """What transformers makes of messages."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(paced_server.engine)

    def ids(chat: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        given = {"add_generation_prompt": True, **kwargs}
        found: list[int] = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False, **given)
        return found

    return ids


def said(server: Server, messages: Any, count: int, **values: Any) -> list[int]:
    """The first tokens of the answer: the fake engine says its prompt."""
    found = ask(
        server, ENSEMBLE, "", count, messages=messages, return_token_ids=True, min_tokens=count, stream=True, **values
    )
    assert found[-1].tensors["num_responses"].item() == sum("text_output" in reply.tensors for reply in found)
    return [
        token_id for reply in found if "token_ids" in reply.tensors for token_id in reply.tensors["token_ids"].ravel()
    ]


@pytest.mark.parametrize("chat", CHATS)
def test_the_engine_gets_the_tokens_that_transformers_makes_of_messages(
    paced_server: Server, expected: Callable[..., list[int]], chat: list[dict[str, Any]]
) -> None:
    ids = expected(chat)
    assert said(paced_server, as_json(chat), len(ids)) == ids
    continued = [*chat, {"role": "assistant", "content": "It is"}]
    ids = expected(continued, add_generation_prompt=False, continue_final_message=True)
    kwargs = as_json({"continue_final_message": True})
    assert said(paced_server, as_json(continued), len(ids), chat_template_kwargs=kwargs) == ids


def test_texts_and_conversations_go_together_in_a_batch(
    paced_server: Server, expected: Callable[..., list[int]]
) -> None:
    chats = ["", as_json(CHATS[1]), as_json(CHATS[0]), ""]
    sent = request(
        "preprocessing",
        {
            "QUERY": rows("Tea", "", "", "Hello there"),
            "MESSAGES": rows(*chats),
            "CHAT_TEMPLATE_KWARGS": rows("", "", as_json({"add_generation_prompt": False}), ""),
            "REQUEST_OUTPUT_LEN": rows(1, 1, 1, 1),
        },
    )
    found = once(paced_server, sent).tensors
    made = [
        line[:length] for line, (length,) in zip(found["INPUT_ID"].tolist(), found["REQUEST_INPUT_LEN"], strict=True)
    ]
    assert made[1] == expected(CHATS[1])
    assert made[2] == expected(CHATS[0], add_generation_prompt=False)
    alone = request("preprocessing", {"QUERY": rows("Hello there"), "REQUEST_OUTPUT_LEN": rows(1)})
    assert made[3] == once(paced_server, alone).tensors["INPUT_ID"][0].tolist()


@pytest.mark.parametrize("text", [{}, {"text_input": ""}], ids=["alone", "empty text"])
def test_messages_come_through_the_generate_endpoint_as_a_json_string(
    paced_server: Server, expected: Callable[..., list[int]], text: dict[str, str]
) -> None:
    body = {**text, "max_tokens": 3, "messages": as_json(CHATS[0]), "return_token_ids": True}
    status, answer = generate(paced_server.http_address, body)
    assert status == 200, answer
    assert (answer["num_input_tokens"], answer["num_responses"]) == (len(expected(CHATS[0])), 1)
    # Triton's JSON has one token as a number, and several as a list.
    assert np.ravel(answer["token_ids"]).tolist() == expected(CHATS[0])[:3]


@pytest.mark.parametrize(
    ("text", "values", "words", "code"),
    [
        ("Tea", {"messages": as_json(CHATS[0])}, "both given", "invalid_messages"),
        ("", {"messages": "[{}]"}, "message 0 has no role", "invalid_messages"),
        ("", {"messages": as_json(CHATS[0] * 100_000)}, "messages has 6300000 bytes", "prompt_too_long"),
        ("", {"messages": as_json(CHATS[0] * 1_000)}, "the prompt's", "prompt_too_long"),
        ("Tea", {"chat_template_kwargs": "{}"}, "requires messages", "invalid_messages"),
        ("", {"messages": as_json(CHATS[0]), "chat_template_kwargs": "[]"}, "JSON object", "invalid_messages"),
        ("", {"messages": as_json([{"role": "user", "content": "a\0b"}])}, "holds a NUL", "invalid_text"),
    ],
)
def test_what_can_not_be_rendered_is_refused(
    paced_server: Server, text: str, values: dict[str, str], words: str, code: str
) -> None:
    told = refusal(paced_server, ENSEMBLE, text, 4, **values)
    assert words in told
    assert told.endswith(f"[{code}]")

"""What lets a client see that it got its answer whole: how many responses, and the tokens behind the text."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from inflight.deploy.server.server import Server
from tests.serving.model_replies import (
    BLS,
    DIRECT,
    ENSEMBLE,
    MODELS,
    TEXT_MODELS,
    Reply,
    ask,
    message,
    prompt_for,
    together,
    words,
)
from tests.serving.raw_requests import GrpcConnection

PROMPT = "The quick brown fox jumps over the lazy dog"
COUNT = "num_responses"


def answers(found: list[Reply]) -> dict[tuple[int, int], list[Reply]]:
    """The responses of each answer, by prompt and sequence."""
    grouped: defaultdict[tuple[int, int], list[Reply]] = defaultdict(list)
    for reply in found:
        if reply.tensors:
            tags = (reply.tensors.get(name) for name in ("batch_index", "sequence_index"))
            row, sequence = (0 if tag is None else int(tag.item()) for tag in tags)
            grouped[row, sequence].append(reply)
    return grouped


def check(found: list[Reply]) -> list[list[Reply]]:
    """Each answer tells with its last response, and only there, how many it had."""
    grouped = list(answers(found).values())
    for replies in grouped:
        assert [COUNT in reply.tensors for reply in replies] == [False] * (len(replies) - 1) + [True]
        assert replies[-1].number(COUNT) == len(replies)
    return grouped


def ids(replies: list[Reply]) -> list[int]:
    return [token_id for reply in replies for token_id in reply.tensors["token_ids"].ravel().tolist()]


CASES: list[dict[str, Any]] = [
    {"stream": True},
    {"stream": False},
    {"stream": False, "exclude_input_in_output": True},
    {"stream": True, "num_return_sequences": 3},
    {"stream": False, "num_return_sequences": 3},
    {"stream": True, "stop_words": words("lazy d", "zebra")},
    {"stream": False, "stop_words": words("lazy d", "zebra")},
    {"stream": True, "return_log_probs": True},
    {"stream": True, "return_perf_metrics": True},
    {"stream": True, "return_perf_metrics": True, "stop_words": words("lazy d")},
    {"stream": False, "beam_width": 2},
    {"stream": True, "beam_width": 2},
]


@pytest.mark.parametrize("values", CASES, ids=lambda values: "-".join(values))
def test_each_answer_tells_its_responses_and_its_tokens(paced_server: Server, values: dict[str, Any]) -> None:
    server = paced_server
    told = {}
    sent = [message(model, prompt_for(server, model, PROMPT), 20, return_token_ids=True, **values) for model in MODELS]
    for model, replies_of_model in zip(MODELS, together(server, *sent), strict=True):
        found = check(replies_of_model)
        assert len(found) == values.get("num_return_sequences", 1)
        told[model] = [ids(replies) for replies in found]
        for replies, token_ids in zip(found, told[model], strict=True):
            if values.get("beam_width", 1) == 1:
                assert len(token_ids) == replies[-1].number("num_output_tokens")
            if model == DIRECT and values["stream"] and "beam_width" not in values:
                assert token_ids == [token_id for reply in replies for token_id in reply.token_ids]
    if "stop_words" not in values:
        assert told[ENSEMBLE] == told[BLS] == told[DIRECT]
    else:
        assert told[ENSEMBLE] == told[BLS]


@pytest.mark.parametrize("model", MODELS)
def test_token_ids_come_only_where_they_are_asked_for(paced_server: Server, model: str) -> None:
    found = ask(paced_server, model, prompt_for(paced_server, model, PROMPT), 3, stream=True)
    assert not [reply for reply in found if "token_ids" in reply.tensors]
    check(found)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_an_answer_that_was_stopped_tells_its_responses_too(paced_server: Server, model: str) -> None:
    asked = message(model, PROMPT, 500, f"stopped-{model}", stream=True, return_token_ids=True)
    with GrpcConnection(paced_server.grpc_address) as connection:
        call = connection.send(asked)
        call.wait_for(3)
        stop = message(DIRECT, [0], 1, asked.id, stop=True)
        connection.send(stop).finish()
        responses = [response for response in call.finish() if response.outputs]
    assert responses[-1].finish_reason == "cancelled"
    assert responses[-1].count(COUNT) == len(responses)
    assert len(responses) < 500

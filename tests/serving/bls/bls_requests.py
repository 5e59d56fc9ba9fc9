"""Requests to `tensorrt_llm_bls` and to the ensemble beside it, and what both say."""

from __future__ import annotations

from typing import Any

import numpy as np

from inflight.deploy.server.server import Server
from tests.serving.raw_requests import GrpcCall, GrpcConnection, TimedResponse, request

BLS = "tensorrt_llm_bls"
PROMPTS = [
    "The quick brown fox jumps over the lazy dog.",
    "抹茶ラテは京都の宇治から。",
    "Tea 🍵, cake 🍰, a family 👩‍👩‍👧‍👦, thumbs 👍🏽 and ❤️‍🔥",
]
Told = tuple[str, str | None, int, int]


def ask(
    connection: GrpcConnection,
    prompt: str | bytes,
    max_tokens: int,
    model: str = BLS,
    request_id: str = "",
    **values: Any,
) -> GrpcCall:
    """A streamed request, unless the values say otherwise."""
    values = {"text_input": prompt, "max_tokens": max_tokens, "stream": True, **values}
    return connection.send(request(model, values, request_id))


def words(*texts: str) -> Any:
    return np.array([[text.encode() for text in texts]], np.object_)


def told(responses: list[TimedResponse]) -> Told:
    """What an answer says in the end, however it was cut into responses."""
    last = responses[-1]
    text = "".join(response.text for response in responses)
    return text, last.finish_reason, last.count("num_input_tokens"), last.count("num_output_tokens")


def answers(
    connection: GrpcConnection, *asked: tuple[tuple[Any, ...], dict[str, Any]], in_turn: bool = False
) -> list[list[TimedResponse]]:
    """The responses to requests, as `ask` takes them, that run at the same time.

    `in_turn`: one after another, as for engines that are not ours: Triton's stub may hang if calls of such overlap, see
    retained_responses.py.
    """
    if in_turn:
        return [ask(connection, *what, **values).finish() for what, values in asked]
    calls = [ask(connection, *what, **values) for what, values in asked]
    return [call.finish() for call in calls]


def of_both(
    connection: GrpcConnection, max_tokens: int, asked: list[tuple[str, dict[str, Any]]], in_turn: bool = False
) -> tuple[list[list[TimedResponse]], list[list[TimedResponse]]]:
    """What the ensemble and the scripted model answer to the same prompts and values, all at the same time."""
    both = (((prompt, max_tokens, model), values) for model in ("ensemble", BLS) for prompt, values in asked)
    found = answers(connection, *both, in_turn=in_turn)
    return found[: len(asked)], found[len(asked) :]


def same(server: Server, max_tokens: int, asked: list[tuple[str, dict[str, Any]]], in_turn: bool = False) -> list[Told]:
    """What both models say to each prompt with its values; they must say the same."""
    with GrpcConnection(server.grpc_address) as connection:
        theirs, ours = of_both(connection, max_tokens, asked, in_turn)
    for their, our, what in zip(theirs, ours, asked, strict=True):
        assert told(our) == told(their), what
    return [told(responses) for responses in ours]

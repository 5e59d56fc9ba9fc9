"""Under load each answer of a request is what the same prompt gets alone, also while other clients leave.

Engine steps take 1 to 5 ms, and many clients ask. Other mixtures are in tests/client/test_hurried.py, and for the
engine in tests/runtime/engine/test_scheduler_traffic.py and tests/runtime/backends/openvino/test_any_mixture.py.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.serving.metrics_page import page_when
from tests.serving.model_replies import DIRECT, MODELS, Reply, ask, generate_body, message, prompt_for, rows
from tests.serving.raw_requests import GrpcConnection, events, post

CLIENTS = 16
PROMPTS = ["tea and cake", "a green river", "seven paper wheels", "Salt, bread; glass! 42"]
LEFT: dict[str, Any] = {"max_tokens": 1900, "stream": True, "end_id": -1}
"""An answer that no client here sees the end of."""
LENGTHS = [4, 5, 6, 9]
"""The most tokens of the answer to each prompt: they end one or few steps apart."""


class ExpectedAnswer(NamedTuple):
    """One answer or beam search, the same in whatever company; with an `end_id` of -1 it runs to its length."""

    prompt: int
    seed: int
    end_id: int = -1
    beams: int = 1


class StreamPlan(NamedTuple):
    """A request: a unit for each of its prompts. The answers behind a prompt's first have the seeds after its own."""

    units: tuple[ExpectedAnswer, ...]
    sequences: int = 1
    stream: bool = True
    log_probs: bool = False


def answers_to(server: Server, model: str, plan: StreamPlan) -> dict[tuple[int, int], Any]:
    """All that each answer holds, by prompt and sequence, however it was cut into responses."""
    units, count = plan.units, len(plan.units)
    values: dict[str, Any] = {
        "seed": rows(*(unit.seed for unit in units), dtype=np.uint64),
        "end_id": rows(*(unit.end_id for unit in units)),
        "beam_width": rows(*[units[0].beams] * count),
        "num_return_sequences": rows(*[plan.sequences] * count),
        "stream": rows(*[plan.stream] * count, dtype=np.bool_),
        "return_log_probs": rows(*[plan.log_probs] * count, dtype=np.bool_),
        "return_token_ids": rows(*[True] * count, dtype=np.bool_),
        "exclude_input_in_output": rows(*[True] * count, dtype=np.bool_),
    }
    prompts = [prompt_for(server, model, PROMPTS[unit.prompt]) for unit in units]
    if model == DIRECT:
        longest = max(map(len, prompts))
        values["input_lengths"] = rows(*map(len, prompts))
        prompt = np.array([[*ids, *[0] * (longest - len(ids))] for ids in prompts], np.int32)
    else:
        prompt = rows(*prompts)
    found: defaultdict[tuple[int, int], list[Reply]] = defaultdict(list)
    for reply in ask(server, model, prompt, rows(*(LENGTHS[unit.prompt] for unit in units)), **values):
        if reply.tensors:
            tags = (reply.tensors.get(name, np.zeros(1)) for name in ("batch_index", "sequence_index"))
            row, sequence = (int(tag.item()) for tag in tags)
            found[row, sequence].append(reply)
    return {index: _whole(replies) for index, replies in found.items()}


def _whole(replies: list[Reply]) -> dict[str, Any]:
    *before, last = replies
    assert last.number("num_responses") == len(replies)
    assert not [reply for reply in before if reply.finish_reason]
    joined: dict[str, Any] = {
        name: [number for reply in replies if name in reply.tensors for number in reply.tensors[name].ravel().tolist()]
        for name in ("token_ids", "output_log_probs", "output_ids")
    }
    return {
        **joined,
        "text": "".join("".join(reply.texts) for reply in replies if "text_output" in reply.tensors),
        "cumulative": last.tensors["cum_log_probs"].tolist() if "cum_log_probs" in last.tensors else None,
        "finish_reason": last.finish_reason,
        "num_output_tokens": last.number("num_output_tokens"),
    }


def plans(source: random.Random, end_ids: list[int]) -> Iterator[StreamPlan]:
    """Requests of all kinds in random order."""

    def unit(**values: int) -> ExpectedAnswer:
        prompt = source.randrange(len(PROMPTS))
        return ExpectedAnswer(prompt, source.choice([0, 1]), source.choice([-1, end_ids[prompt]]), **values)

    while True:
        units, log_probs = tuple(unit() for _ in range(source.randint(2, 4))), source.random() < 0.5
        yield source.choice(
            [
                *[StreamPlan(units, log_probs=log_probs)] * 3,
                StreamPlan(units[:1], sequences=3, log_probs=log_probs),
                StreamPlan(units[:2], sequences=2, log_probs=log_probs),
                StreamPlan(units, stream=False, log_probs=log_probs),
                StreamPlan((unit(beams=2),), stream=False, log_probs=log_probs),
            ]
        )


def leave(server: Server, model: str, number: int) -> None:
    """Over gRPC or HTTP, before the first response, after it or some later."""
    text = PROMPTS[number % len(PROMPTS)]
    if number % 2:
        with GrpcConnection(server.grpc_address) as connection:
            call = connection.send(message(model, prompt_for(server, model, text), **LEFT))
            call.wait_for(number % 5)
            call.cancel()
        return
    body = generate_body(server, model, text, **LEFT)
    with post(server.http_address, f"/v2/models/{model}/generate_stream", body) as response:
        for _, (_, event) in zip(range(number % 5), events(response), strict=False):
            assert "error" not in event, event


@pytest.mark.parametrize("requests", [48, pytest.param(192, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["hurried_server", "interval_server"])
@pytest.mark.parametrize("model", MODELS)
def test_each_answer_is_what_its_prompt_gets_alone(
    serving: Callable[[str], Server], name: str, model: str, requests: int
) -> None:
    server, plain = serving(name), serving("hurried_server")  # with a stream interval, an answer is what it is without

    @cache
    def expected(unit: ExpectedAnswer, stream: bool, log_probs: bool) -> Any:
        (answer,) = answers_to(plain, model, StreamPlan((unit,), stream=stream, log_probs=log_probs)).values()
        return answer

    # An answer ends either at its length or, for some seeds, before its third token.
    end_ids = [expected(ExpectedAnswer(prompt, 0), True, False)["token_ids"][2] for prompt in range(len(PROMPTS))]
    drawn = plans(random.Random(model), end_ids)
    asked = [next(drawn) for _ in range(requests)]
    wanted = [
        {
            (row, sequence): expected(unit._replace(seed=unit.seed + sequence), plan.stream, plan.log_probs)
            for row, unit in enumerate(plan.units)
            for sequence in range(plan.sequences)
        }
        for plan in asked
    ]
    with ThreadPoolExecutor(CLIENTS) as threads:
        leaving = [threads.submit(leave, server, model, number) for number in range(requests // 4)]
        found = list(threads.map(lambda plan: answers_to(server, model, plan), asked))
        for client in leaving:
            client.result()
    page_when(server, lambda page: page.quiet)
    assert (server.restarts, server.ready) == (0, True)
    wrong = [(plan, *pair) for plan, *pair in zip(asked, wanted, found, strict=True) if pair[0] != pair[1]]
    assert not wrong, f"the answers to {len(wrong)} of {requests} requests are wrong: {wrong[0]}"

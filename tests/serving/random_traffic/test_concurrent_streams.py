"""Under load each answer of a request is what the same prompt gets alone: engine steps of 1 to 5 ms, many clients."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from tritonclient.grpc import InferResult

from inflight.deploy.server.server import Server
from tests.serving.model_replies import DIRECT, DIRECT_NAMES, MODELS, prompt_for
from tests.serving.raw_requests import GrpcConnection, request

CLIENTS = 16
REQUESTS = 96
PROMPTS = ["tea and cake", "a green river", "seven paper wheels", "Salt, bread; glass! 42"]
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


class StreamClient:
    """One connection, which asks one model."""

    def __init__(self, server: Server, model: str) -> None:
        self._connection = GrpcConnection(server.grpc_address)
        self._server = server
        self._model = model

    def close(self) -> None:
        self._connection.close()

    def request(self, plan: StreamPlan) -> dict[tuple[int, int], Any]:
        """All that each answer holds, by prompt and sequence, however it was cut into responses."""
        found: defaultdict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
        sent = request(self._model, self._values(plan))
        for message in self._connection.stub.ModelStreamInfer(iter([sent]), timeout=120):
            assert not message.error_message, message.error_message
            result = InferResult(message.infer_response)
            tensors = {output.name: result.as_numpy(output.name) for output in message.infer_response.outputs}
            indices = [int(tensors.pop(name, np.zeros(1)).item()) for name in ("batch_index", "sequence_index")]
            found[indices[0], indices[1]].append(tensors)
        return {index: _whole(responses) for index, responses in found.items()}

    def _values(self, plan: StreamPlan) -> dict[str, Any]:
        first = plan.units[0]
        count = len(plan.units)
        values: dict[str, Any] = {
            "max_tokens": _column([LENGTHS[unit.prompt] for unit in plan.units], np.int32),
            "seed": _column([unit.seed for unit in plan.units], np.uint64),
            "end_id": _column([unit.end_id for unit in plan.units], np.int32),
            "beam_width": _column([first.beams] * count, np.int32),
            "num_return_sequences": _column([plan.sequences] * count, np.int32),
            "stream": _column([plan.stream] * count, np.bool_),
            "return_log_probs": _column([plan.log_probs] * count, np.bool_),
            "return_token_ids": _column([True] * count, np.bool_),
            "exclude_input_in_output": _column([True] * count, np.bool_),
        }
        prompts = [prompt_for(self._server, self._model, PROMPTS[unit.prompt]) for unit in plan.units]
        if self._model != DIRECT:
            return {**values, "text_input": _column([prompt.encode() for prompt in prompts], np.object_)}
        longest = max(map(len, prompts))
        values["input_ids"] = np.array([[*ids, *[0] * (longest - len(ids))] for ids in prompts], np.int32)
        values["input_lengths"] = _column(list(map(len, prompts)), np.int32)
        return {DIRECT_NAMES.get(name, name): value for name, value in values.items()}


def _column(values: list[Any], dtype: Any) -> Any:
    return np.array([[value] for value in values], dtype)


def _whole(responses: list[Mapping[str, Any]]) -> dict[str, Any]:
    *before, last = responses
    assert last["num_responses"].item() == len(responses)
    assert not [one for one in before if "finish_reason" in one]
    joined: dict[str, Any] = {
        name: [number for one in responses if name in one for number in one[name].ravel().tolist()]
        for name in ("token_ids", "output_log_probs", "output_ids")
    }
    joined["text"] = [b"".join(one["text_output"].tolist()) for one in responses if "text_output" in one]
    return {
        **joined,
        "text": b"".join(joined["text"]),
        "cumulative": last["cum_log_probs"].tolist() if "cum_log_probs" in last else None,
        "finish_reason": last["finish_reason"].item(),
        "num_output_tokens": last["num_output_tokens"].item(),
    }


def plans(model: str, source: random.Random, end_ids: list[int]) -> Iterator[StreamPlan]:
    """Requests of all kinds in random order."""

    def unit(**values: int) -> ExpectedAnswer:
        prompt = source.randrange(len(PROMPTS))
        return ExpectedAnswer(prompt, source.choice([0, 1]), source.choice([-1, end_ids[prompt]]), **values)

    while True:
        kind = source.choice(["rows", "rows", "rows", "sequences", "both", "whole", "beams"])
        rows = tuple(unit() for _ in range(source.randint(2, 4)))
        log_probs = source.random() < 0.5
        if kind == "rows":
            yield StreamPlan(rows, log_probs=log_probs)
        elif kind == "sequences":
            yield StreamPlan(rows[:1], sequences=3, log_probs=log_probs)
        elif kind == "both":
            yield StreamPlan(rows[:2], sequences=2, log_probs=log_probs)
        elif kind == "whole":
            yield StreamPlan(rows, stream=False, log_probs=log_probs)
        elif kind == "beams":
            yield StreamPlan((unit(beams=2),), stream=False, log_probs=log_probs)


@pytest.mark.parametrize("name", ["hurried_server", "interval_server"])
@pytest.mark.parametrize("model", MODELS)
def test_each_answer_is_what_its_prompt_gets_alone(serving: Callable[[str], Server], name: str, model: str) -> None:
    server = serving(name)
    # With a stream interval, an answer is what it is without.
    alone = StreamClient(serving("hurried_server") if name == "interval_server" else server, model)

    @cache
    def expected(unit: ExpectedAnswer, stream: bool, log_probs: bool) -> Any:
        (answer,) = alone.request(StreamPlan((unit,), stream=stream, log_probs=log_probs)).values()
        return answer

    # An answer ends either at its length or, for some seeds, before its third token.
    end_ids = [expected(ExpectedAnswer(prompt, 0), True, False)["token_ids"][2] for prompt in range(len(PROMPTS))]
    source = random.Random(model)
    drawn = plans(model, source, end_ids)
    asked = [next(drawn) for _ in range(REQUESTS)]
    wanted = [
        {
            (row, sequence): expected(unit._replace(seed=unit.seed + sequence), plan.stream, plan.log_probs)
            for row, unit in enumerate(plan.units)
            for sequence in range(plan.sequences)
        }
        for plan in asked
    ]
    count = CLIENTS
    clients = [StreamClient(server, model) for _ in range(count)]
    shares = [range(number, REQUESTS, count) for number in range(count)]
    with ThreadPoolExecutor(count) as threads:
        shared = threads.map(lambda client, share: [(n, client.request(asked[n])) for n in share], clients, shares)
        found = dict(pair for pairs in shared for pair in pairs)
    for client in [alone, *clients]:
        client.close()
    wrong = {
        (number, *index): (answer, found[number].get(index))
        for number in range(REQUESTS)
        for index, answer in wanted[number].items()
        if found[number].get(index) != answer
    }
    assert not wrong, f"{len(wrong)} of {sum(map(len, wanted))} answers are wrong: {next(iter(wrong.items()))}"
    assert [len(answers) for answers in found.values()] == [len(wanted[number]) for number in found]

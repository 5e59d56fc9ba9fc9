"""A request has the same answer through the gateway, through the ensemble, and as token ids of `tensorrt_llm`."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from inflight_client import AsyncClient, CallOptions, Generation, InflightError, Sampling, TokenIds

from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from inflight.text.detokenizer import Detokenizer
from inflight.text.text_stream import TextStream
from inflight.text.tokenizer import encode, load_tokenizer
from tests.gateway.test_answers import WORDS

CONCURRENT = 16


def options(source: random.Random) -> CallOptions:
    """Draw the options of a request, most of which use several sampling parameters."""
    drawn: dict[str, Any] = {"temperature": source.choice([0.0, 0.7, 1.0, 1.5]), "seed": source.getrandbits(40)}
    for name, values in (
        ("top_p", [0.5, 0.95]),
        ("top_k", [3, 40]),
        ("min_p", [0.05]),
        ("presence_penalty", [0.5]),
        ("repetition_penalty", [1.2]),
        ("min_tokens", [3]),
        ("stop", [("e", "an"), ("th",)]),
        ("bad_words", [("a", "es")]),
        ("logit_bias", [{7: 5.0, 9: -100.0}]),
        ("end_id", [-1]),
    ):
        if source.random() < 0.3:
            drawn[name] = source.choice(values)
    found: CallOptions = {"sampling": Sampling(**drawn), "max_tokens": source.randint(1, 40)}
    if source.random() < 0.3:
        found["return_log_probs"] = True
    return found


def told(answer: Generation | InflightError) -> Any:
    if isinstance(answer, InflightError):
        return answer.code
    logs = None if answer.log_probs is None else [round(float(each), 4) for each in answer.log_probs]
    usage = answer.usage and (answer.usage.input_tokens, answer.usage.output_tokens)
    return answer.text, "stop" if answer.finish_reason == "stop_word" else answer.finish_reason, usage, logs


@pytest.mark.parametrize("count", [120, pytest.param(2000, marks=pytest.mark.slow)])
def test_an_answer_is_the_same_three_ways(server: Server, model_gateway: GatewayProcesses, count: int) -> None:
    tokenizer = load_tokenizer(str(server.engine))
    detokenizer = Detokenizer(tokenizer)
    source = random.Random(count)
    prompts = ["".join(source.choices(WORDS, k=source.randint(1, 12))) + "t" for _ in range(count)]
    asked = [(prompt, options(source)) for prompt in prompts]

    async def answers() -> list[tuple[Any, ...]]:
        gate = asyncio.Semaphore(CONCURRENT)
        async with (
            AsyncClient(f"http://127.0.0.1:{model_gateway.port}/v1") as gateway,
            AsyncClient(server.grpc_address) as ensemble,
            AsyncClient(server.grpc_address, "tensorrt_llm") as engine,
        ):

            async def ways(prompt: str, values: CallOptions) -> tuple[Any, ...]:
                ids = encode(tokenizer, [prompt], add_special_tokens=True)[0]
                sampling = values["sampling"]
                words = [*sampling.stop, *sampling.bad_words]
                word_ids = dict(zip(words, encode(tokenizer, words, False), strict=True))
                with_text: CallOptions = {**values, "token_text": TextStream(detokenizer, ids, word_ids)}
                async with gate:
                    streams = (
                        gateway.stream(prompt, **values),
                        ensemble.stream(prompt, **values),
                        engine.stream(TokenIds(tuple(ids)), **with_text),
                    )
                    read = await asyncio.gather(*(each.read() for each in streams), return_exceptions=True)
                return tuple(told(each) if isinstance(each, Generation | InflightError) else each for each in read)

            return await asyncio.gather(*(ways(*each) for each in asked))

    found = asyncio.run(answers())
    assert sum(isinstance(each[0], str) for each in found) == 0, "each request is answered"
    both = zip(asked, found, strict=True)
    different = [(what, three) for what, three in both if len({*map(repr, three)}) > 1]
    assert different == []

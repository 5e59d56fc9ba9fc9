"""Options by token id, and log probabilities of answers and prompts, through the whole server with a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from inflight_client import CallOptions, Client, Sampling
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from inflight.deploy.repository.configure import DeploymentOptions
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyCheckpoint, TinyEngine

PROMPT = "Tea is a drink that people like. " * 9


@pytest.fixture(scope="module")
def client(tiny_engine: TinyEngine) -> Iterator[Client]:
    with shared_server(tiny_engine("llama"), DeploymentOptions()) as server, Client(server.grpc_address) as client:
        yield client


@pytest.fixture(scope="module")
def model(tiny_checkpoint: TinyCheckpoint) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_torch(
    client: Client, model: Any, tiny_engine: TinyEngine, stream: bool
) -> None:
    """Twice: the second time, the prompt's blocks are known."""
    prompt = Tokenizer.from_file(str(tiny_engine("llama") / "tokenizer.json")).encode(PROMPT).ids
    for _ in range(2):
        asked: CallOptions = {"max_tokens": 9, "top_log_probs": 4, "return_prompt_log_probs": True}
        asked["return_token_ids"] = True
        if stream:
            with client.stream(PROMPT, **asked) as deltas:
                list(deltas)
            answer = deltas.generation
        else:
            answer = client.generate(PROMPT, **asked)
        assert answer is not None
        assert answer.token_ids is not None
        with torch.inference_mode():
            rows = torch.log_softmax(model(torch.tensor([[*prompt, *answer.token_ids]])).logits[0], -1)
        told = [*(answer.prompt_log_probs or ())[1:], *(answer.log_probs or ())]
        tokens = [*prompt[1:], *answer.token_ids]
        assert told == pytest.approx([float(row[token]) for row, token in zip(rows, tokens, strict=False)], abs=1e-3)
        for row, each in zip(rows, told, strict=False):
            assert list(each.top.values()) == pytest.approx(row.topk(4).values.tolist(), abs=1e-3)
            assert [float(row[token]) for token in each.top] == pytest.approx(list(each.top.values()), abs=1e-3)


def test_known_prefixes_are_counted(client: Client) -> None:
    """In whole blocks of 32 tokens, and by tenant."""
    prompt = "Coffee is another. " * 20
    found = [client.generate(prompt, max_tokens=2, tenant=tenant).usage for tenant in ("a", "a", "b")]
    first, second, other = (usage.cached_tokens for usage in found if usage is not None)
    assert (first, other) == (0, 0)
    assert second is not None
    assert second > 32
    assert second % 32 == 0


def test_options_by_token_reach_the_engine(client: Client) -> None:
    def tokens(**values: Any) -> tuple[int, ...]:
        return client.generate(PROMPT, max_tokens=6, sampling=Sampling(end_id=-1, **values)).token_ids or ()

    plain = tokens()
    assert tokens(logit_bias={77: 50.0}) == (77,) * 6
    assert set(tokens(allowed_token_ids=[60, 61], temperature=2.0)) <= {60, 61}
    assert tokens(logit_bias={plain[0]: -100.0})[0] != plain[0]
    assert tokens(temperature=1.0, min_p=1.0) == plain

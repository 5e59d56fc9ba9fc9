"""Greedy tokens of an engine in flight against those of transformers, on the same checkpoint."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from build_engines.manifest import Manifest
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest
from tests.fixtures.engines import ARCHITECTURES, TinyCheckpoint, TinyEngine
from tests.runtime.backends.drive_runner import run

NEW_TOKENS = 64
QUICK = "gemma2"
"""It has what sets models apart: windows, soft caps, tied weights. tests/runtime/backends/openvino/test_batches.py
compares some tokens of each architecture."""
# Two logits that lie nearer than this may change places with the order of a sum.
TIE = 1e-4
# Around blocks of the cache (32 tokens), windows of the tiny checkpoints (256), and chunks of the prefill (512).
EDGES = [1, 2, 31, 32, 33, 255, 256, 257, 512, 513, 1499, 1500]


def draw_prompts(count: int, vocab_size: int) -> list[list[int]]:
    source = random.Random(1)
    lengths = [*EDGES, *(source.randint(1, 1500) for _ in range(count))][:count]
    return [[source.randrange(vocab_size) for _ in range(length)] for length in lengths]


def load(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def generate_alone(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    generated = model.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    return list(generated[0, len(prompt) :].tolist())


def is_greedy(model: Any, prompt: list[int], answer: list[int], end_ids: list[int]) -> bool:
    """Whether each token of `answer` is the model's best after all before it, or ties with the best.

    What follows a tie isn't judged: the reference might have gone the other way.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
    best = logits.topk(2).values
    for number, token in enumerate(answer):
        if token != int(logits[number].argmax()):
            return float(best[number, 0] - best[number, 1]) < TIE
    ended = [number for number, token in enumerate(answer) if token in end_ids]
    return ended == ([len(answer) - 1] if len(answer) < NEW_TOKENS else ended[-1:])


def generate_in_flight(engine: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return the answers of one batch, each with the end token that ended it."""
    manifest = Manifest.read(engine)
    runner = OpenVinoModelRunner(EngineOptions("openvino", str(engine), 1 << 17, max_num_tokens=512))
    requests = [GenerationRequest(tuple(prompt), NEW_TOKENS) for prompt in prompts]
    return [until_end(answer.token_ids, manifest.end_ids) for answer in run(runner, *requests)]


def until_end(answer: list[int], end_ids: list[int]) -> list[int]:
    ends = [place for place, token in enumerate(answer) if token in end_ids]
    return answer[: ends[0] + 1] if ends else answer


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in ARCHITECTURES],
)
def test_fifty_prompts_in_flight_are_answered_as_transformers_would(
    tiny_checkpoint: TinyCheckpoint, tiny_engine: TinyEngine, architecture: str
) -> None:
    engine = tiny_engine(architecture, precision="fp32")
    manifest = Manifest.read(engine)
    prompts = draw_prompts(50, manifest.vocab_size)
    answers = generate_in_flight(engine, prompts)
    model = load(tiny_checkpoint(architecture))
    pairs = zip(prompts, answers, strict=True)
    wrong = [len(prompt) for prompt, answer in pairs if not is_greedy(model, prompt, answer, manifest.end_ids)]
    assert wrong == [], f"prompts of these lengths were answered otherwise by {architecture}"
    # Random weights that fell into one repeated token would prove little.
    assert sum(len(set(answer)) for answer in answers) / len(answers) > 20


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fifty_answers_equal_those_of_generate_token_for_token(
    tiny_checkpoint: TinyCheckpoint, tiny_engine: TinyEngine, architecture: str
) -> None:
    engine = tiny_engine(architecture, precision="fp32")
    manifest = Manifest.read(engine)
    prompts = draw_prompts(50, manifest.vocab_size)
    answers = generate_in_flight(engine, prompts)
    model = load(tiny_checkpoint(architecture))
    for prompt, answer in zip(prompts, answers, strict=True):
        if generate_alone(model, prompt) != answer:
            assert is_greedy(model, prompt, answer, manifest.end_ids), f"{architecture}, {len(prompt)} tokens"

"""Training writes a whole checkpoint, the same each time, and says how it goes."""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
from collections.abc import Callable

import pytest
import torch

from build_engines.demo.corpus import training_examples
from build_engines.demo.tokenizer import END_ID, PAD_ID, train_tokenizer
from build_engines.demo.training import BATCH, IGNORED, draw_batches, encode_examples, train_checkpoint

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def _train(out: pathlib.Path, seed: int) -> tuple[dict[str, str], list[str]]:
    out.mkdir()
    lines: list[str] = []
    train_checkpoint(out, seed=seed, report=lines.append, steps=2)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}, lines


def test_the_same_seed_gives_the_same_checkpoint_and_another_one_another(tmp_path: pathlib.Path) -> None:
    state = torch.random.get_rng_state()
    first, lines = _train(tmp_path / "first", 5)
    assert first.keys() == FILES
    assert _train(tmp_path / "again", 5)[0] == first
    other = _train(tmp_path / "other", 6)[0]
    assert {name for name in FILES if other[name] != first[name]} == {"model.safetensors"}, "the tokenizer is the same"
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers were disturbed"
    assert lines[0] == "corpus: 6000 product descriptions"
    assert lines[-1].startswith("step 2 of 2, loss ")
    assert lines[-1].endswith(", 0 s left")


def test_the_configuration_names_the_end_and_no_beginning(young_demo_checkpoint: Callable[[], pathlib.Path]) -> None:
    checkpoint = young_demo_checkpoint()
    config = json.loads((checkpoint / "config.json").read_text())
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["bos_token_id"] is None
    assert config["eos_token_id"] == generation["eos_token_id"] == END_ID
    assert config["pad_token_id"] == generation["pad_token_id"] == PAD_ID
    assert config["num_key_value_heads"] < config["num_attention_heads"]


@pytest.fixture(scope="module")
def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    examples = training_examples(count=300)
    tokenizer = train_tokenizer(f"{example.prompt} {example.description}" for example in examples)
    drawn = draw_batches(encode_examples(examples, tokenizer, random.Random(0)), random.Random(0))
    return [next(drawn) for _ in range(16)]


def test_only_answers_are_learned_and_each_ends(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for ids, labels in batches:
        assert ids.shape == labels.shape
        assert ids.shape[0] == BATCH
        for row, learned in zip(ids.tolist(), labels.tolist(), strict=True):
            answer = [i for i, label in enumerate(learned) if label != IGNORED]
            assert answer == list(range(answer[0], answer[-1] + 1)), "the answer is one piece"
            assert answer[0] > 10, "the prompt is given"
            assert row[answer[0] : answer[-1] + 1] == learned[answer[0] : answer[-1] + 1]
            assert learned[answer[-1]] == END_ID
            assert set(row[answer[-1] + 1 :]) <= {PAD_ID}


def test_batches_are_mostly_text(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    padding = sum(int((ids == PAD_ID).sum()) for ids, _ in batches) / sum(ids.numel() for ids, _ in batches)
    assert padding < 0.15

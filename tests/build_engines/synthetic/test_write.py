from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from build_engines.checkpoints.checkpoint import read_checkpoint
from build_engines.errors import BuildError
from build_engines.synthetic.shapes import KNOWN
from build_engines.synthetic.write import write_synthetic_checkpoint
from tests.fixtures.engines import ARCHITECTURES, TinyCheckpoint
from tests.fixtures.errors import raises

# Parameters as the models' cards give them, in millions.
PARAMETERS = {
    "qwen2.5-0.5b": 494,
    "qwen2.5-1.5b": 1544,
    "qwen2.5-7b": 7616,
    "qwen3-0.6b": 596,
    "llama-3.2-1b": 1236,
    "llama-3.1-8b": 8030,
    "tinyllama-1.1b": 1100,
    "mistral-7b": 7248,
    "gemma-2-2b": 2614,
    "phi-3-mini": 3821,
    "gpt2": 124,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_shape_has_the_parameters_of_its_model(name: str) -> None:
    shape = KNOWN[name]
    config = AutoConfig.for_model(shape.model_type, vocab_size=shape.vocab_size, **shape.fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    assert round(model.num_parameters() / 1e6) == PARAMETERS[name]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tiny_checkpoint_is_whole(tiny_checkpoint: TinyCheckpoint, architecture: str) -> None:
    directory = tiny_checkpoint(architecture)
    read_checkpoint(directory)
    model, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.generation_config.eos_token_id == 1
    assert model.dtype == torch.float32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_answers_wander(tiny_checkpoint: TinyCheckpoint, architecture: str) -> None:
    """Random weights that end in one repeated token would hide wrong positions and masks from every test."""
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(architecture))
    ids = torch.randint(3, 1536, (8, 40), generator=torch.Generator().manual_seed(5))
    answers = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)[:, 40:]
    distinct = sum(len(set(answer.tolist())) for answer in answers) / len(answers)
    assert distinct > 20


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    written = []
    for number, seed in enumerate((1, 1, 2)):
        out = tmp_path / str(number)
        out.mkdir()
        write_synthetic_checkpoint("tiny-qwen2", out, seed=seed)
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert written[0] == written[1]
    assert written[0]["model.safetensors"] != written[2]["model.safetensors"]


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with raises(BuildError, "unsupported_architecture", naming=("gpt-9", "qwen2.5-0.5b")):
        write_synthetic_checkpoint("gpt-9", tmp_path)
    assert list(tmp_path.iterdir()) == []

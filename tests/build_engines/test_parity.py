"""Greedy tokens of an engine in flight against those of transformers, on the same checkpoint."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from build_engines.manifest import Manifest
from build_engines.openvino.export import ExportTask
from build_engines.openvino.export_runner import run_export
from build_engines.progress import NoBuildProgress
from build_engines.synthetic.shapes import TINY
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest
from tests.fixtures.engines import FAMILIES, TinyCheckpoint, TinyEngine
from tests.runtime.backends.drive_runner import run

NEW_TOKENS = 64
QUICK = ("gemma2", "lfm2")
"""They have what sets models apart: windows, soft caps, tied weights, convolutions.
tests/runtime/backends/openvino/test_batches.py compares some tokens of each of ARCHITECTURES."""
ALL = [*((name, 20) for name in QUICK), *(pytest.param(name, 50, marks=pytest.mark.slow) for name in FAMILIES)]
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


@pytest.mark.parametrize(("architecture", "count"), ALL)
def test_prompts_in_flight_are_answered_as_transformers_would(
    tiny_checkpoint: TinyCheckpoint, tiny_engine: TinyEngine, architecture: str, count: int
) -> None:
    engine = tiny_engine(architecture, precision="fp32")
    manifest = Manifest.read(engine)
    prompts = draw_prompts(count, manifest.vocab_size)
    answers = generate_in_flight(engine, prompts)
    model = load(tiny_checkpoint(architecture))
    pairs = zip(prompts, answers, strict=True)
    wrong = [len(prompt) for prompt, answer in pairs if not is_greedy(model, prompt, answer, manifest.end_ids)]
    assert wrong == [], f"prompts of these lengths were answered otherwise by {architecture}"
    # Random weights that fell into one repeated token would prove little.
    least = 8 if architecture == "bloom" else 20  # its tied embeddings, normalized, outweigh tiny layers
    assert sum(len(set(answer)) for answer in answers) / len(answers) > least


THETA = 5000.0
"""A rotation that is no architecture's default: read from the wrong field, it would change the engine."""


_PARTIAL = "partial_rotary_factor"


def set_theta(parameters: dict[str, Any]) -> None:
    """Set the rotation, of each kind of layer if the config has one for each."""
    for part in [*(value for value in parameters.values() if isinstance(value, dict)), parameters]:
        if "rope_theta" in part:
            part["rope_theta"] = THETA


def in_form_of_transformers_4(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of config.json as transformers 4 wrote it."""
    old = {"torch_dtype" if name == "dtype" else name: value for name, value in config.items()}
    rope = dict(old.pop("rope_parameters"))
    if "full_attention" in rope:
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    names = ("rotary_emb_base", "rotary_pct") if old["model_type"] == "gpt_neox" else ("rope_theta", _PARTIAL)
    old[names[0]] = rope.pop("rope_theta")
    if _PARTIAL in rope:
        old[names[1]] = rope.pop(_PARTIAL)
    old["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    return old | {"transformers_version": "4.57.6"}


def rotates(architecture: str) -> bool:
    return "rope_parameters" in AutoConfig.for_model(TINY[f"tiny-{architecture}"].model_type).to_dict()


def forms(checkpoint: Path, place: Path) -> tuple[Path, Path]:
    """Return a copy of a checkpoint of transformers 5, and the same as transformers 4 saved it."""
    today = Path(shutil.copytree(checkpoint, place / "5"))
    config = json.loads((today / "config.json").read_text())
    set_theta(config["rope_parameters"])
    (today / "config.json").write_text(json.dumps(config))
    before = Path(shutil.copytree(today, place / "4"))
    (before / "config.json").write_text(json.dumps(in_form_of_transformers_4(config)))
    tokenizer = json.loads((before / "tokenizer_config.json").read_text())
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    (before / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return today, before


# AFMoE came with transformers 5.
ROTATING = [name for name in FAMILIES if rotates(name) and name != "afmoe"]


@pytest.mark.parametrize("architecture", ROTATING)
def test_the_configs_of_transformers_4_and_5_are_read_alike(architecture: str, tmp_path: Path) -> None:
    shape = TINY[f"tiny-{architecture}"]
    ids = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    AutoConfig.for_model(shape.model_type, vocab_size=1536, **ids, **shape.fields).save_pretrained(tmp_path / "0")
    (tmp_path / "0" / "tokenizer_config.json").write_text("{}")
    today, before = (AutoConfig.from_pretrained(path) for path in forms(tmp_path / "0", tmp_path))
    assert str(THETA) in str(today.rope_parameters)
    assert before.to_diff_dict() == today.to_diff_dict()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ROTATING)
def test_a_checkpoint_saved_by_transformers_4_gives_the_same_engine(
    tiny_checkpoint: TinyCheckpoint, architecture: str, tmp_path: Path
) -> None:
    results = []
    for checkpoint in forms(tiny_checkpoint(architecture), tmp_path):
        out = tmp_path / f"engine-{checkpoint.name}"
        out.mkdir()
        facts = run_export(ExportTask(str(checkpoint), str(out), "fp32", None, {}, False), NoBuildProgress())
        results.append((facts, (out / "openvino_model.bin").read_bytes(), (out / "tokenizer.json").read_bytes()))
    assert results[0] == results[1]

"""What transformers answers to 50 prompts, greedily: the measure of every engine. Kept in .cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from build_engines.demo.corpus import training_examples
from tests.fixtures.engines import CACHE

NEW_TOKENS = 64
LENGTHS = [1, 2, 3, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1500]
GROUP = 10


@dataclass(frozen=True)
class Reference:
    """One prompt, its greedy continuation, and by how much each step's best logit exceeds the second."""

    prompt: list[int]
    tokens: list[int]
    leads: list[float]


def references(checkpoint: Path) -> list[Reference]:
    """50 prompts of 1 to 1,500 tokens, the longest first, answered by `generate` in fp32 without an end token."""
    prompts = draw_prompts(checkpoint)
    key = hashlib.sha256(json.dumps([prompts, NEW_TOKENS, importlib.metadata.version("transformers")]).encode())
    path = CACHE / f"reference-{checkpoint.name}-{key.hexdigest()[:10]}.json"
    if not path.is_file():
        found = [asdict(one) for one in _generate(checkpoint, prompts)]
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(found))
        beside.rename(path)
    return [Reference(**one) for one in json.loads(path.read_text())]


def draw_prompts(checkpoint: Path) -> list[list[int]]:
    """Token ids at random; for the demo checkpoint, which knows only product descriptions, a walk through those."""
    source = random.Random(7)
    lengths = LENGTHS + [round(1500 ** source.random()) for _ in range(50 - len(LENGTHS))]
    if checkpoint.name.startswith("demo"):
        tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        text = "\n".join(f"{one.prompt} {one.description}" for one in training_examples(0)[:400])
        ids = tokenizer.encode(text).ids
        starts = [source.randrange(len(ids) - length) for length in lengths]
        prompts = [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    else:
        size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
        prompts = [[source.randrange(size) for _ in range(length)] for length in lengths]
    return sorted(prompts, key=len, reverse=True)


def _generate(checkpoint: Path, prompts: list[list[int]]) -> list[Reference]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # more of them spend their time on waiting for each other, where cores are busy
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    found: list[Reference] = []
    for start in range(0, len(prompts), GROUP):
        found += _generate_group(model, prompts[start : start + GROUP])
    return found


def _generate_group(model: Any, prompts: list[list[int]]) -> list[Reference]:
    """Prompts of similar length at once, padded on the left; at fp32 this changes logits by a few millionths."""
    import torch

    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    given = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(given.logits, dim=1).topk(2).values
    leads = (best[..., 0] - best[..., 1]).tolist()
    tokens = given.sequences[:, longest:].tolist()
    return [Reference(*one) for one in zip(prompts, tokens, leads, strict=True)]

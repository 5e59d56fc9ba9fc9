"""The gain of speculative decoding for a single stream, and how many draft tokens are accepted.

`python -m benchmarks.speculation` pads a tiny synthetic Llama with layers that change nothing, so that it costs many
times as much. It measures the padded model alone, with the model itself as its draft, and with prompt lookup: on
prompts that repeat themselves, and on prompts that hold the answer. Runs are interleaved; each figure is a ratio of one
run on one machine.
"""

from __future__ import annotations

import copy
import random
import shutil
import statistics
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import get_args

import click

from benchmarks.fixtures import BENCH_DIRECTORY, bench_checkpoint, bench_engine
from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.make_checkpoint import make_checkpoint
from build_engines.manifest import Manifest, Precision
from build_engines.progress import NoBuildProgress
from inflight.runtime.engine.interface import EngineOptions, ModelRunner
from inflight.runtime.messages import GenerationRequest, SpeculationStats

LIKE = "tiny-llama"
PADDED_LAYERS = 62

DRAFT_TOKENS = 8
PROMPTS = 4
ROUNDS = 3
MAX_TOKENS = 120
PROMPT_TOKENS = 32

_HANDLES = count(1)


@dataclass(frozen=True)
class TimedAnswer:
    token_ids: tuple[int, ...]
    seconds: float
    speculation: SpeculationStats


@dataclass(frozen=True)
class Gain:
    """The speed-up from speculation, and the fraction of draft tokens that were accepted."""

    times: float
    acceptance: float
    tokens_a_step: float

    def __str__(self) -> str:
        return (
            f"{self.times:.1f} times as fast; {self.acceptance:.0%} of the draft tokens accepted, "
            f"{self.tokens_a_step:.1f} tokens per step"
        )


def engines(precision: Precision) -> tuple[Path, Path]:
    """Return the engines of the padded checkpoint and of its draft model, built once."""
    shallow, deep = bench_checkpoint(LIKE), BENCH_DIRECTORY / f"{LIKE}-{PADDED_LAYERS}-deeper"
    if not deep.exists():
        make_checkpoint(deep, lambda directory: pad_layers(shallow, directory, PADDED_LAYERS), NoBuildProgress())
    build_engine(str(deep), engine := BENCH_DIRECTORY / f"{deep.name}-{precision}", BuildOptions(precision=precision))
    return engine, bench_engine(LIKE, precision)


def pad_layers(source: Path, out: Path, layers: int) -> None:
    """Write the Llama `source` into `out` with more layers that add nothing to the hidden states."""
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(source, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors", ".inflight-*"))
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    for _ in range(layers):
        layer = copy.deepcopy(model.model.layers[-1])
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
        layer.self_attn.layer_idx += 1
        model.model.layers.append(layer)
    model.config.num_hidden_layers += layers
    model.save_pretrained(out)


def measure(deep: Path, draft: Path, rounds: int = ROUNDS) -> dict[str, Gain]:
    """Return the gain of the draft model, and of prompt lookup on two kinds of prompts."""
    options = EngineOptions(
        "openvino", str(deep), kv_cache_tokens=4096, max_num_sequences=4, num_draft_tokens=DRAFT_TOKENS
    )
    plain = _stepper(options)
    drafting = _stepper(replace(options, draft_dir=str(draft)))
    looking_up = _stepper(replace(options, prompt_lookup=True))
    manifest, source = Manifest.read(deep), random.Random(0)
    end = manifest.end_ids[0]
    prompts = [tuple(source.choices(range(3, manifest.vocab_size), k=PROMPT_TOKENS)) for _ in range(PROMPTS)]
    answers = [_generate(plain, prompt, end).token_ids for prompt in prompts]
    holding = [(*prompt, *answer, *prompt) for prompt, answer in zip(prompts, answers, strict=True)]
    repeating = [prompt[: number + 1] * PROMPT_TOKENS for number, prompt in enumerate(prompts)]
    return {
        "the model itself as its draft": _gain(plain, drafting, prompts, end, rounds),
        "prompt lookup, prompts that repeat themselves": _gain(plain, looking_up, repeating, end, rounds),
        "prompt lookup, prompts that hold the answer": _gain(plain, looking_up, holding, end, rounds),
    }


def _stepper(options: EngineOptions) -> ModelRunner:
    from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner

    return OpenVinoModelRunner(options)


def _gain(plain: ModelRunner, fast: ModelRunner, prompts: list[tuple[int, ...]], end: int, rounds: int) -> Gain:
    """Compare the decoding of all prompts, one after another; return the median of the rounds' ratios."""
    ratios, taken, drafted, tokens, steps = [], 0, 0, 0, 0
    for _ in range(rounds):
        slow_seconds = fast_seconds = 0.0
        for prompt in prompts:
            slow, quick = _generate(plain, prompt, end), _generate(fast, prompt, end)
            slow_seconds += slow.seconds
            fast_seconds += quick.seconds
            taken += quick.speculation.accepted
            drafted += quick.speculation.drafted
            tokens += len(quick.token_ids)
            steps += len(quick.token_ids) - quick.speculation.accepted
        ratios.append(slow_seconds / fast_seconds)
    return Gain(statistics.median(ratios), taken / max(drafted, 1), tokens / steps)


def _generate(stepper: ModelRunner, prompt: tuple[int, ...], end: int) -> TimedAnswer:
    """Generate one answer alone; its seconds are from the first token to the last."""
    stepper.add(next(_HANDLES), GenerationRequest(prompt, MAX_TOKENS, (end,)))
    token_ids: list[int] = []
    speculation = SpeculationStats()
    started = 0.0
    while True:
        for progress in stepper.step():
            started = started or time.perf_counter()
            token_ids += progress.token_ids
            speculation = progress.speculation or speculation
            if progress.finish_reason is not None:
                return TimedAnswer(tuple(token_ids), time.perf_counter() - started, speculation)


@click.command(help=__doc__)
@click.option("--precision", default="bf16", show_default=True, type=click.Choice(get_args(Precision)))
@click.option("--rounds", default=ROUNDS, show_default=True, type=click.IntRange(1))
def main(precision: Precision, rounds: int) -> None:
    gains = measure(*engines(precision), rounds)
    print(f"a single stream on a target with {PADDED_LAYERS} layers more, at most {DRAFT_TOKENS} draft tokens per step")
    for name, gain in gains.items():
        print(f"  {name}: {gain}")


if __name__ == "__main__":
    main()

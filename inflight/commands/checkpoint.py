"""`inflight checkpoint`: create a checkpoint offline."""

from __future__ import annotations

from pathlib import Path

import click

from build_engines.synthetic.write import ALL_SHAPES
from inflight.commands.terminal.build_progress import show_build_progress


@click.group("checkpoint")
def command() -> None:
    """Create a checkpoint with random weights, offline.

    \b
    inflight checkpoint synthetic --like qwen2.5-0.5b --out ./qwen-shape
    """


@command.command("synthetic")
@click.option(
    "--like",
    type=click.Choice(list(ALL_SHAPES)),
    metavar="NAME",
    required=True,
    help=f"One of {', '.join(ALL_SHAPES)}.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to write.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random weights.")
def synthetic(like: str, out: Path, seed: int) -> None:
    """Write a checkpoint with the exact shape of a known model and random weights, for benchmarks and tests.

    The same name and seed give the same files. The model's output is noise.

    \b
    inflight checkpoint synthetic --like qwen2.5-0.5b --out ./qwen-shape
    inflight checkpoint synthetic --like tiny-llama --seed 7 --out ./tiny
    """
    from build_engines.checkpoints.make_checkpoint import make_checkpoint
    from build_engines.synthetic.write import write_synthetic_checkpoint

    with show_build_progress() as progress:
        make_checkpoint(
            out, lambda directory: write_synthetic_checkpoint(like, directory, seed=seed, progress=progress), progress
        )
    click.echo(f"Wrote {out}, a {like} with random weights. Build it with: inflight build {out} --out ENGINE_DIR")

"""`inflight demo`: checkpoint, engine, server, a streamed answer, and what in-flight batching gains."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from pathlib import Path

import click
from inflight_client import AsyncClient, Client, Sampling
from rich.console import Console
from rich.table import Table

from inflight.commands.progress import reporting
from inflight.deploy.server import Server

IN_FLIGHT = (1, 64)
MAX_TOKENS = 64


@click.command()
@click.option(
    "--dir",
    "place",
    envvar="INFLIGHT_DEMO_DIR",
    type=click.Path(path_type=Path),
    default=Path("inflight-demo"),
    show_default=True,
    help="Where the demo's checkpoint and engine go; a second run finds them there.",
)
def command(place: Path) -> None:
    """Make a small checkpoint, compile it, serve it, stream an answer, and stop.

    \b
    inflight demo
    inflight demo --dir /tmp/demo
    """
    console = Console()
    checkpoint, engine = place / "checkpoint", place / "engine"
    _make(console, checkpoint, engine)
    console.rule("Serve", align="left")
    console.print("Starting NVIDIA Triton Inference Server with the engine ...")
    with Server(engine) as server:
        console.print(f"It answers: HTTP on {server.http_address}, gRPC on {server.grpc_address}.")
        _stream(console, server.grpc_address)
        _measure(console, server.grpc_address)
    console.print("The server has stopped.\n")
    _what_next(console, checkpoint, engine)


def _make(console: Console, checkpoint: Path, engine: Path) -> None:
    """The checkpoint, unless it stands already, and the engine."""
    from build_engines.build import Options, build_engine
    from build_engines.demo import make_demo_checkpoint
    from build_engines.make_checkpoint import make_checkpoint

    console.rule("Checkpoint", align="left")
    if (checkpoint / "config.json").is_file():
        console.print(f"{checkpoint} stands already.")
    else:
        console.print("Training a small Llama on product descriptions; about a minute on two cores.")
        with reporting() as progress:
            make_checkpoint(
                checkpoint, lambda directory: make_demo_checkpoint(directory, report=progress.step), progress
            )
    console.rule("Engine", align="left")
    with reporting() as progress:
        built = build_engine(str(checkpoint), engine, Options(), progress=progress)
    manifest = built.manifest
    console.print(f"{engine}: {manifest.architecture}, {manifest.precision} weights, target {manifest.target}.")


def _stream(console: Console, address: str) -> None:
    """One answer, shown as its tokens come."""
    from build_engines.demo import example_prompts

    console.rule("One streamed answer", align="left")
    (prompt,) = example_prompts(1, seed=1)
    console.print(f"[dim]{prompt}[/dim]", highlight=False)
    with Client(address) as client:
        for delta in client.stream(prompt, max_tokens=MAX_TOKENS * 2):
            click.echo(delta.text, nl=False)
            sys.stdout.flush()
    click.echo()


def _measure(console: Console, address: str) -> None:
    """Tokens a second with one request in flight and with many."""
    console.rule("In-flight batching", align="left")
    speeds = {}
    for count in IN_FLIGHT:
        console.print(f"{count} request{'s' if count > 1 else ''} in flight ...")
        asyncio.run(_tokens_per_second(address, count))  # the first round warms up
        speeds[count] = max(asyncio.run(_tokens_per_second(address, count)) for _ in range(3))
    table = Table("requests in flight", "tokens/s", "times one")
    for count, speed in speeds.items():
        table.add_row(str(count), f"{speed:,.0f}", f"{speed / speeds[IN_FLIGHT[0]]:.1f}")
    console.print(table)


async def _tokens_per_second(address: str, count: int) -> float:
    """Stream `count` answers at once, each to its full length."""
    from build_engines.demo import example_prompts

    async with AsyncClient(address) as client:

        async def one(prompt: str) -> int:
            # end_id -1: no token ends the answer, so that all are of equal length
            deltas = client.stream(prompt, max_tokens=MAX_TOKENS, sampling=Sampling(end_id=-1))
            return max([delta.output_tokens or 0 async for delta in deltas])

        started = time.perf_counter()
        tokens = await asyncio.gather(*(one(prompt) for prompt in example_prompts(count, seed=2)))
        return sum(tokens) / (time.perf_counter() - started)


def _what_next(console: Console, checkpoint: Path, engine: Path) -> None:
    inflight = "inflight" if shutil.which("inflight") else str(Path(sys.executable).with_name("inflight"))
    console.rule("What to type next", align="left")
    for line, meaning in (
        (f"{inflight} serve {engine}", "serve it until Ctrl-C"),
        (f'{inflight} generate "Product: oak bench | Colour: green | Description:"', "from another terminal"),
        (f"{inflight} build YOUR_CHECKPOINT --out YOUR_ENGINE", "a checkpoint of your own"),
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
        console.print(f"      {meaning}", style="dim")

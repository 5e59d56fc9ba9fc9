"""`make bench`: the gateway beside vLLM's own OpenAI server, by default with the same weights in bf16.

vLLM runs in its own environment if it is installed (`python -m benchmarks.batch.peers --install-vllm`). The two take
turns, and the processes of the one that is idle are stopped meanwhile. Each prompt is new, so no prefix is cached.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import click
import psutil
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.batch.peers import KV_CACHE_TOKENS, LIKE
from benchmarks.batch.vllm_peer import ENVIRONMENT, PYTHON, installed
from benchmarks.completion_client import CompletionClient
from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine
from benchmarks.gateway_cost import gateway
from benchmarks.prompts import Prompts
from build_engines.manifest import Precision
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.processes import listen

_START_SECONDS = 600


@dataclass(frozen=True)
class Side:
    client: CompletionClient
    processes: Callable[[], list[psutil.Process]]

    def send_signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            process.send_signal(number)


@click.command(help=__doc__)
@click.option("--pairs", default=5, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--precision", default="bf16", show_default=True, help="Of inflight's weights; vLLM's are in bf16.")
@click.option("--out", type=click.Path(path_type=Path), default=BENCH_DIRECTORY / "gateway_peers.json")
def main(pairs: int, max_tokens: int, prompt_tokens: int, precision: Precision, out: Path) -> None:
    if not installed():
        sys.exit("vLLM is not installed; run `python -m benchmarks.batch.peers --install-vllm` first.")
    console, found = Console(), {}
    engine = bench_engine(LIKE, precision)
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")), seed=1)
    with _vllm(BENCH_DIRECTORY / LIKE) as theirs:
        theirs.send_signal(signal.SIGSTOP)
        with _inflight(engine) as ours:
            theirs.send_signal(signal.SIGCONT)
            for streams in (1, 64):
                runs = [_pair(ours, theirs, prompts, streams, max_tokens, prompt_tokens, n) for n in range(-1, pairs)]
                found[streams] = runs[1:]
                for (speed, first), (other, later) in runs[1:]:
                    console.print(
                        f"{streams} streams: inflight {speed:.1f} tokens/s, first token {first * 1e3:.0f} ms;"
                        f" vLLM {other:.1f}, {later * 1e3:.0f} ms"
                    )
    table = Table("streams", "tokens/s, inflight / vLLM", "goal", "time to first token, inflight / vLLM")
    for (streams, runs), goal in zip(found.items(), (1.5, 1.3), strict=True):
        speeds = statistics.median(ours[0] / theirs[0] for ours, theirs in runs)
        firsts = statistics.median(ours[1] / theirs[1] for ours, theirs in runs)
        table.add_row(str(streams), f"{speeds:.2f}", f">= {goal}", f"{firsts:.2f}")
    console.print(table)
    out.write_text(json.dumps(found, indent=2))


def _pair(
    ours: Side, theirs: Side, prompts: Prompts, streams: int, max_tokens: int, prompt_tokens: int, number: int
) -> Sequence[tuple[float, float]]:
    """Return tokens per second and the time to the first token of both."""
    texts = [text for text, _ in prompts.next_prompts(streams, prompt_tokens)]
    found = {}
    for side, idle in ((ours, theirs), (theirs, ours))[:: 1 if number % 2 else -1]:
        idle.send_signal(signal.SIGSTOP)
        found[side] = asyncio.run(side.client.speed(texts, max_tokens))
        idle.send_signal(signal.SIGCONT)
        time.sleep(1)
    return found[ours], found[theirs]


@contextmanager
def _inflight(engine: Path) -> Iterator[Side]:
    options = DeploymentOptions(kv_cache_tokens=KV_CACHE_TOKENS)
    with Server(engine, options) as server, gateway(server) as front:

        def processes() -> list[psutil.Process]:
            # Not the parent of tritonserver, which would take the silence for a crash.
            triton = psutil.Process(server.pid)
            return [front.process, triton, *triton.children(recursive=True)]

        yield Side(front.client, processes)


@contextmanager
def _vllm(checkpoint: Path) -> Iterator[Side]:
    with closing(listen("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "64")
    command = (str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint), *options)
    with (BENCH_DIRECTORY / "vllm.log").open("w") as log:
        started = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "bench"],
            stdout=log, stderr=log, env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip
    main_process = psutil.Process(started.pid)
    try:
        _wait_for_health(port, started)
        yield Side(CompletionClient(port, "bench"), lambda: [main_process, *main_process.children(recursive=True)])
    finally:
        for process in (*main_process.children(recursive=True), main_process):
            process.kill()
        started.wait()


def _wait_for_health(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except URLError:
            time.sleep(0.5)
    sys.exit(f"vLLM doesn't answer; its log is {BENCH_DIRECTORY / 'vllm.log'}")


if __name__ == "__main__":
    main()

"""`make bench`: rows through a batch job, and the same rows as they are run without it.

Compared are `transformers`' `generate` in static batches of 32, and vLLM's offline inference if it is installed
(`--install-vllm`). Rows are sorted by the length of their prompts and the job keeps that order, so that no side
benefits from the lengths of the answers, which are forced here and unknown in practice. Times exclude loading.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.batch.rows import BenchRow, equal_rows, mixed_rows, tokens, write_openai
from benchmarks.batch.run_timing import run_measured
from benchmarks.batch.transformers_peer import Transformers
from benchmarks.batch.vllm_peer import Vllm, install, installed
from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine
from benchmarks.prompts import Prompts
from inflight.batch.dispatch.ephemeral_server import address_with_metrics
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server

LIKE = "qwen2.5-0.5b"
KV_CACHE_TOKENS = 32768
_WORK = BENCH_DIRECTORY / "batch"


@click.command(help=__doc__)
@click.option("--equal", default=64, show_default=True, help="Rows of 64 tokens and answers of 48.")
@click.option("--mixed", default=64, show_default=True, help="Rows of 16 to 128 tokens and answers of 8 to 128.")
@click.option("--install-vllm", is_flag=True, help="Create vLLM's environment first (several gigabytes).")
@click.option("--out", type=click.Path(path_type=Path), default=BENCH_DIRECTORY / "batch_peers.json", show_default=True)
def main(equal: int, mixed: int, install_vllm: bool, out: Path) -> None:
    console = Console()
    if install_vllm and not installed():
        install()
    engine = bench_engine(LIKE, "bf16")
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")), seed=1)
    works = {"equal": equal_rows(prompts, equal, 64, 48), "mixed": mixed_rows(prompts, mixed)}
    found = {"job": _job(console, engine, works, equal_rows(prompts, 16, 16, 16))}
    peer = Transformers(BENCH_DIRECTORY / LIKE)
    found["transformers"] = {
        name: _print_speed(console, "transformers", name, peer.run(rows)) for name, rows in works.items()
    }
    peer.close()
    if installed():
        vllm = Vllm(BENCH_DIRECTORY / LIKE, BENCH_DIRECTORY / "vllm.log")
        found["vllm"] = {name: _print_speed(console, "vllm", name, vllm.run(rows)) for name, rows in works.items()}
        vllm.close()
    _show(console, found)
    out.write_text(json.dumps(found, indent=2))


def _job(console: Console, engine: Path, works: dict[str, list[BenchRow]], warm: list[BenchRow]) -> dict[str, float]:
    found = {}
    with Server(engine, DeploymentOptions(kv_cache_tokens=KV_CACHE_TOKENS)) as server:
        for name, rows in {"warm": warm, **works}.items():
            shutil.rmtree(_WORK, ignore_errors=True)
            _WORK.mkdir(parents=True)
            taken = str(write_openai(rows, _WORK / "rows.jsonl"))
            more = (
                "--out",
                str(_WORK / "answers.jsonl"),
                "--server",
                address_with_metrics(server),
                "--order",
                "arrival",
            )
            found[name] = _print_speed(console, "job", name, tokens(rows) / run_measured("run", taken, *more).run)
    shutil.rmtree(_WORK)
    return found


def _print_speed(console: Console, who: str, name: str, speed: float) -> float:
    console.print(f"{who}, {name}: {speed:.1f} tokens/s")
    return speed


def _show(console: Console, found: dict[str, dict[str, float]]) -> None:
    table = Table(title="The same rows, tokens/s of the answers")
    for column in ("answers", *found, *(f"job / {peer}" for peer in list(found)[1:])):
        table.add_column(column, justify="right")
    for name in ("equal", "mixed"):
        speeds = [values[name] for values in found.values()]
        table.add_row(name, *(f"{one:.1f}" for one in speeds), *(f"{speeds[0] / one:.2f}" for one in speeds[1:]))
    console.print(table)


if __name__ == "__main__":
    main()

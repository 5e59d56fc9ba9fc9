"""`make bench`: rows through a batch job, and the same rows as they are run without it.

Compared are `transformers`' `generate` in static batches of 32, and vLLM's offline inference if it is installed
(`--install-vllm`). Rows are sorted by the length of their prompts and the job keeps that order, so that no side
benefits from the lengths of the answers, which are forced here and unknown in practice. Times exclude loading.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click
from tokenizers import Tokenizer

from benchmarks.batch.rows import BenchRow, equal_rows, mixed_rows, tokens, write_openai
from benchmarks.batch.run_timing import run_measured
from benchmarks.batch.transformers_peer import Transformers
from benchmarks.batch.vllm_peer import Vllm, install, installed
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine
from benchmarks.prompts import Prompts
from inflight.batch.dispatch.ephemeral_server import address_with_metrics
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server

LIKE = "qwen2.5-0.5b"
KV_CACHE_TOKENS = 32768
_WORK = BENCH_DIRECTORY / "batch"
_GOALS = {"equal": ">= 1.5", "mixed": ">= 2.5"}


@click.command(help=__doc__)
@click.option("--equal", default=64, show_default=True, help="Rows of 64 tokens and answers of 48.")
@click.option("--mixed", default=64, show_default=True, help="Rows of 16 to 128 tokens and answers of 8 to 128.")
@click.option("--install-vllm", is_flag=True, help="Create vLLM's environment first (several gigabytes).")
@out_option("batch_peers")
def main(equal: int, mixed: int, install_vllm: bool, out: Path) -> None:
    if install_vllm and not installed():
        install()
    engine = bench_engine(LIKE, "bf16")
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")), seed=1)
    works = {"equal": equal_rows(prompts, equal, 64, 48), "mixed": mixed_rows(prompts, mixed)}
    speeds = {"job": _job(engine, works, equal_rows(prompts, 16, 16, 16))}
    peer = Transformers(BENCH_DIRECTORY / LIKE)
    speeds["transformers"] = {name: _print_speed("transformers", name, peer.run(rows)) for name, rows in works.items()}
    peer.close()
    if installed():
        vllm = Vllm(BENCH_DIRECTORY / LIKE, BENCH_DIRECTORY / "vllm.log")
        speeds["vllm"] = {name: _print_speed("vllm", name, vllm.run(rows)) for name, rows in works.items()}
        vllm.close()
    report(out, [_figure(name, peer, speeds) for name in works for peer in list(speeds)[1:]], speeds)


def _job(engine: Path, works: dict[str, list[BenchRow]], warm: list[BenchRow]) -> dict[str, float]:
    measured = {}
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
            measured[name] = _print_speed("job", name, tokens(rows) / run_measured("run", taken, *more).run)
    shutil.rmtree(_WORK)
    return measured


def _print_speed(who: str, name: str, speed: float) -> float:
    print(f"{who}, {name}: {speed:.1f} tokens/s")
    return speed


def _figure(rows: str, peer: str, speeds: dict[str, dict[str, float]]) -> Figure:
    return Figure(
        f"tokens/s of {rows} answers, job / {peer}",
        [speeds["job"][rows] / speeds[peer][rows]],
        _GOALS[rows] if peer == "transformers" else "",
    )


if __name__ == "__main__":
    main()

"""`make bench`: whether sorting a job's rows pays off: the order by prefix against that of arrival.

Two kinds of rows: documents with several questions each, interleaved, on a KV cache that holds only some of the
documents; and short prompts with answers of mixed lengths, which do not depend on the prompts. Runs are interleaved, on
prompts that the server has not seen, of the same lengths in each pair; the result is the median of the pairs' ratios.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from inflight_client import InflightError
from inflight_client.sampling import Sampling
from tokenizers import Tokenizer

from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine
from benchmarks.prompts import Prompts
from inflight.batch.dispatch.dispatcher import Dispatcher
from inflight.batch.dispatch.ephemeral_server import ephemeral_server
from inflight.batch.dispatch.prefix_order import order_by_prefix
from inflight.batch.dispatch.triton_backend import TritonBackend
from inflight.batch.job.rows import GenerateRequest, Row, RowAnswer
from inflight.batch.job.spec import RunOptions

KV_CACHE_TOKENS = 2048
MAX_SEQUENCES = 8
_TO_THE_LENGTH = Sampling(end_id=-1)


@dataclass(frozen=True)
class OrderComparison:
    """Seconds of the runs, pair by pair."""

    rows: str
    arrival_seconds: list[float]
    best_seconds: list[float]

    @property
    def figure(self) -> Figure:
        ratios = [arrival / best for arrival, best in zip(self.arrival_seconds, self.best_seconds, strict=True)]
        return Figure(f"time of {self.rows}, order of arrival / best order", ratios)


class PreloadedFeed:
    """A feed whose rows are all available."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._left = iter(rows)

    async def get(self) -> Row | None:
        return next(self._left, None)


class NoCrashes:
    """Crash counts for rows that crash nothing."""

    def __init__(self) -> None:
        self.crash_counts: dict[int, int] = {}

    def record_crashes(self, number: int, crashes: int) -> None:
        raise click.ClickException(f"an engine crashed with row {number}")


def documents(prompts: Prompts, seed: int) -> list[Row]:
    """Return rows of twelve documents of 192 tokens with four questions each, interleaved; answers of 8 tokens."""
    texts = [text for text, _ in prompts.next_prompts(12, 192)]
    questions = [f"{text} {question}" for question, _ in prompts.next_prompts(4, 12) for text in texts]
    return _rows([(prompt, 8) for prompt in questions])


def mixed(prompts: Prompts, seed: int) -> list[Row]:
    """Return 64 prompts of 16 to 64 tokens; answers of 8 to 160, log-normal around 30."""
    draw = random.Random(seed)
    return _rows(
        [
            (
                prompts.next_prompts(1, draw.randint(16, 64))[0][0],
                min(160, max(8, round(draw.lognormvariate(3.4, 0.9)))),
            )
            for _ in range(64)
        ]
    )


def _rows(requests: Sequence[tuple[str, int]]) -> list[Row]:
    return [
        Row(n, n + 1, str(n), GenerateRequest(prompt, tokens, _TO_THE_LENGTH))
        for n, (prompt, tokens) in enumerate(requests)
    ]


async def seconds(rows: Sequence[Row], running: RunOptions, address: str) -> float:
    """Return how long the dispatcher takes for the rows in that order."""

    def done(row: Row, result: RowAnswer | InflightError, attempts: int) -> None:
        if isinstance(result, InflightError):
            raise click.ClickException(f"row {row.number} failed: {result}")

    pool = Dispatcher(
        [TritonBackend(address, running)], running, PreloadedFeed(rows), done, NoCrashes(), lambda build: None, print
    )
    began = time.perf_counter()
    await pool.run()
    took = time.perf_counter() - began
    await pool.close()
    return took


def compare(
    name: str,
    make: Callable[[Prompts, int], list[Row]],
    prompts: Prompts,
    running: RunOptions,
    address: str,
    pairs: int,
) -> OrderComparison:
    """Compare the orders; the first of each pair alternates."""
    took: dict[str, list[float]] = {"arrival": [], "best": []}
    for pair in range(pairs):
        for order in ("arrival", "best") if pair % 2 else ("best", "arrival"):
            rows = make(prompts, pair)
            ordered = order_by_prefix(rows) if order == "best" else rows
            took[order].append(asyncio.run(seconds(ordered, running, address)))
            print(f"{name}, pair {pair}, {order}: {took[order][-1]:.1f} s", flush=True)
    return OrderComparison(name, took["arrival"], took["best"])


@click.command(help=__doc__)
@click.option("--pairs", default=3, show_default=True)
@click.option("--like", default="qwen2.5-0.5b", show_default=True, help="Shape of the engine.")
@out_option("batch_order")
def main(pairs: int, like: str, out: Path) -> None:
    engine = bench_engine(like, "bf16")
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")), seed=time.time_ns())
    options = {"kv_cache_tokens": KV_CACHE_TOKENS, "max_num_sequences": MAX_SEQUENCES}
    running = RunOptions(ephemeral=str(engine), ephemeral_options=options)
    with ephemeral_server(running, print) as address:
        asyncio.run(seconds(mixed(prompts, 0)[:8], running, address))  # warm-up
        comparisons = [
            compare("documents", documents, prompts, running, address, pairs),
            compare("mixed answers", mixed, prompts, running, address, pairs),
        ]
    report(out, [one.figure for one in comparisons], [asdict(one) for one in comparisons])


if __name__ == "__main__":
    main()

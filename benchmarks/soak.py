"""`make soak`: twice the load that the server carries, with clients that vanish in mid-stream, for a long time.

First the peak is found: tokens and requests a second with as many streams in flight as the engine runs. Then clients
come at random, twice as many a second as were answered at the peak; what is too much is refused. Shares of them cancel
over gRPC, drop their HTTP connection, or are processes that are killed. Completed work must go on at 0.9 of the peak,
the memory of the server's processes must not grow, and nothing of the server may be left behind. The exit code is 1 for
a broken promise, and a sentence says which.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.family_memory import MIB, FamilyMemory
from benchmarks.leak_detector import Growth, growth
from benchmarks.load import Tally, Visit, Workload, closed_loop, open_loop, stay
from benchmarks.made import bench_engine
from benchmarks.prompts import Prompts
from benchmarks.rest import await_rest
from benchmarks.vanishing import cancel_over_grpc, drop_over_http, kill_a_process
from inflight.deploy.process import Member
from inflight.deploy.repository import DeploymentOptions
from inflight.deploy.run_directory import SHARED_MEMORY
from inflight.deploy.server import Server

MODEL = "qwen2.5-0.5b"
LOAD = 2.0
_SERVER = "tritonserver"
_PROGRESS_SECONDS = 15.0
_REST_SECONDS = 60.0
_MEASUREMENTS = 180


@dataclass(frozen=True)
class Plan:
    """How long, with which clients, and what is promised of it.

    Lengths are in tokens, `vanishing` is the share of the clients that leave. `least_work` is a share of the peak,
    `most_growth` of the memory after the warm-up.
    """

    seconds: float
    peak_seconds: float
    warm_up_seconds: float
    in_flight: int = 64
    prompt_tokens: int = 32
    shortest: int = 64
    longest: int = 192
    vanishing: float = 0.05
    killed_streams: int = 4
    killed_every_seconds: float = 15.0
    least_work: float = 0.9
    most_growth: float = 0.03


@dataclass(frozen=True)
class Verdict:
    """What a soak found; `failures` has a sentence for each promise that was not kept."""

    peak_tokens_per_second: float
    tokens_per_second: float
    requests_per_second: float
    """Those that were answered at the peak; twice as many came."""
    tally: dict[str, Any]
    memory: Growth
    memory_by_member: dict[str, tuple[float, float]]
    """MiB after the warm-up, and at the end."""
    vanished_after_warm_up: int
    failures: list[str] = field(default_factory=list)

    @property
    def work(self) -> float:
        """Completed work a second, as a share of the peak's."""
        return self.tokens_per_second / self.peak_tokens_per_second

    @property
    def kib_for_each_vanished(self) -> float:
        """What tritonserver grew by after the warm-up, for each client that vanished since."""
        begin, end = self.memory_by_member[_SERVER]
        return (end - begin) * 1024 / max(1, self.vanished_after_warm_up)


def soak(engine: Path, options: DeploymentOptions, plan: Plan, report: Callable[[str], None]) -> Verdict:
    """Serve an engine, load it as planned, stop it, and look at what is left."""
    server = Server(engine, options)
    with server:
        family = list(server.life.family)
        prefix = server.run.shm_prefix
        prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
        workload = Workload(prompts, plan.prompt_tokens, plan.shortest, plan.longest)
        verdict = asyncio.run(_load(server, family, workload, plan, report))
        held = await_rest(server, _REST_SECONDS)
        restarts = server.restarts
    failures = list(verdict.failures)
    if held:
        failures.append(f"the engine did not come to rest: {held}")
    if restarts:
        failures.append(f"the server died {restarts} times")
    failures += _left_behind(family, prefix)
    return replace(verdict, failures=failures)


async def _load(
    server: Server, family: list[Member], workload: Workload, plan: Plan, report: Callable[[str], None]
) -> Verdict:
    peak, rate = await _peak(server, workload, plan, report)
    tally = Tally()
    with FamilyMemory(family, period_seconds=plan.seconds / _MEASUREMENTS) as memory:
        begin = time.monotonic()
        warm = asyncio.create_task(_vanished_after(plan.warm_up_seconds, tally))
        telling = asyncio.create_task(_tell(begin, tally, memory, report))
        await _overload(server, workload, plan, rate * LOAD, tally)
        end = begin + plan.seconds
        telling.cancel()
    grown = growth(memory.whole, plan.warm_up_seconds)
    # Clients that stay are not many at first: the queue fills only after a while.
    work = tally.tokens_per_second(begin + min(plan.warm_up_seconds, plan.seconds / 5), end)
    verdict = Verdict(
        peak_tokens_per_second=peak,
        tokens_per_second=work,
        requests_per_second=rate,
        tally={name: value for name, value in asdict(tally).items() if name != "delivered"},
        memory=grown,
        memory_by_member={
            name: (one.begin / MIB, one.end / MIB)
            for name, series in memory.by_member.items()
            for one in [growth(series, plan.warm_up_seconds)]
        },
        vanished_after_warm_up=tally.vanished - await warm,
    )
    return replace(verdict, failures=_broken_promises(verdict, plan, tally))


async def _peak(server: Server, workload: Workload, plan: Plan, report: Callable[[str], None]) -> tuple[float, float]:
    """Tokens, and answers, a second with `in_flight` streams; the first third, in which they all begin, is left out."""
    tally = Tally()
    begin = time.monotonic()
    await closed_loop(server.grpc_address, workload, plan.in_flight, plan.peak_seconds, tally)
    tokens = tally.tokens_per_second(begin + plan.peak_seconds / 3, begin + plan.peak_seconds)
    rate = tokens / ((plan.shortest + plan.longest) / 2)
    report(f"Peak: {tokens:.0f} tokens/s, {rate:.1f} answers/s with {plan.in_flight} streams in flight.")
    if tally.broken or tally.hanging or not tokens:
        raise RuntimeError(f"the peak can't be found: {tally.broken}, {tally.hanging} hang")
    return tokens, rate


async def _overload(server: Server, workload: Workload, plan: Plan, per_second: float, tally: Tally) -> None:
    source = random.Random(2)
    leave: list[Visit] = [cancel_over_grpc(source), drop_over_http(server.http_address, source)]

    def choose() -> Visit:
        return source.choice(leave) if source.random() < plan.vanishing else stay

    async def kill_again_and_again() -> None:
        deadline = time.monotonic() + plan.seconds - plan.killed_every_seconds
        while time.monotonic() < deadline:
            await asyncio.sleep(plan.killed_every_seconds)
            await kill_a_process(server.grpc_address, plan.killed_streams, plan.longest, tally)

    await asyncio.gather(
        open_loop(server.grpc_address, workload, per_second, plan.seconds, tally, choose), kill_again_and_again()
    )


async def _vanished_after(seconds: float, tally: Tally) -> int:
    await asyncio.sleep(seconds)
    return tally.vanished


async def _tell(begin: float, tally: Tally, memory: FamilyMemory, report: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        now = time.monotonic()
        report(
            f"{now - begin:5.0f} s: {tally.tokens_per_second(now - _PROGRESS_SECONDS, now):.0f} tokens/s,"
            f" {tally.completed} completed, {tally.vanished} vanished, {tally.refused} refused,"
            f" {sum(tally.broken.values())} broken, {memory.mib:.1f} MiB"
        )


def _broken_promises(verdict: Verdict, plan: Plan, tally: Tally) -> list[str]:
    failures = []
    if verdict.work < plan.least_work:
        failures.append(f"completed work fell to {verdict.work:.3f} of the peak's, and {plan.least_work} is promised")
    if verdict.memory.exceeds(plan.most_growth):
        failures.append(f"memory grew by {verdict.memory.share:.1%}, and less than {plan.most_growth:.0%} is promised")
    if tally.hanging or tally.broken:
        failures.append(f"{tally.hanging} requests hung, and these broke: {dict(tally.broken)} {tally.words or ''}")
    if not tally.refused:
        failures.append("nothing was refused, so this was no overload")
    if not tally.vanished:
        failures.append("nobody vanished")
    return failures


def _left_behind(family: list[Member], prefix: str) -> list[str]:
    left = [f"{member.name} (pid {member.pid}) still runs" for member in family if member.alive()]
    regions = [region.name for region in SHARED_MEMORY.glob(f"{prefix}*")]
    return left + ([f"shared memory is left: {', '.join(regions)}"] if regions else [])


@click.command(help=__doc__)
@click.option("--minutes", default=15.0, show_default=True, type=click.FloatRange(0.5, 24 * 60))
@click.option("--engine", type=click.Path(exists=True, path_type=Path), help="An engine; else that of `make bench`.")
@click.option("--vanishing", default=Plan.vanishing, show_default=True, type=click.FloatRange(0, 1))
@click.option("--out", type=click.Path(path_type=Path), default=Path(".cache/bench/soak.json"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, the progress on stderr.")
def main(minutes: float, engine: Path | None, vanishing: float, out: Path, as_json: bool) -> None:
    console = Console(stderr=as_json, highlight=False)
    seconds = minutes * 60
    plan = Plan(
        seconds,
        peak_seconds=min(90.0, seconds / 4),
        warm_up_seconds=min(120.0, seconds / 4),
        vanishing=vanishing,
    )
    options = DeploymentOptions(kv_cache_tokens=32768, max_queue_size=plan.in_flight)
    verdict = soak(engine or bench_engine(MODEL, "bf16"), options, plan, partial(console.print, soft_wrap=True))
    figures = {
        "minutes": minutes,
        **asdict(verdict),
        "work": verdict.work,
        "kib_for_each_vanished": verdict.kib_for_each_vanished,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=2))
    if as_json:
        print(json.dumps(figures))
    else:
        _show(console, plan, verdict)
        console.print(f"All figures: {out}")
    raise SystemExit(1 if verdict.failures else 0)


def _show(console: Console, plan: Plan, verdict: Verdict) -> None:
    table = Table(title="Twice the load that the server carries")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("promised", justify="right")
    table.add_row("peak, tokens/s", f"{verdict.peak_tokens_per_second:.0f}", "")
    table.add_row("completed work, tokens/s", f"{verdict.tokens_per_second:.0f}", "")
    table.add_row("of the peak", f"{verdict.work:.3f}", f"{plan.least_work} or more")
    memory = verdict.memory
    table.add_row("memory after the warm-up, MiB", f"{memory.begin / MIB:.1f}", "")
    table.add_row("memory at the end, MiB", f"{memory.end / MIB:.1f}", "")
    table.add_row(
        "growth (windows, trend)", f"{memory.windows:+.2%}, {memory.trend:+.2%}", f"under {plan.most_growth:.0%}"
    )
    for name, (begin, end) in verdict.memory_by_member.items():
        table.add_row(f"  {name}, MiB", f"{begin:.1f} to {end:.1f}", "")
    table.add_row("tritonserver's growth for each vanished client, KiB", f"{verdict.kib_for_each_vanished:.0f}", "")
    for name, value in verdict.tally.items():
        table.add_row(f"requests {name}", str(value or 0), "0" if name in ("hanging", "broken", "unsent") else "")
    console.print(table)
    for failure in verdict.failures:
        console.print(f"FAILED: {failure}", soft_wrap=True)
    if not verdict.failures:
        console.print("Every promise was kept.")


if __name__ == "__main__":
    main()

"""`make soak`: twice the load that the server can handle, with clients that disconnect during streams, for a long time.

First the peak is measured: tokens and requests per second with as many streams in flight as the engine runs. Then
clients arrive at random, twice as many per second as were answered at the peak; excess requests are rejected. Some
clients cancel over gRPC, drop their HTTP connection, or are processes that are killed. Completed work must stay at 0.9
of the peak, the memory of the server's processes must not grow, and nothing of the server may be left behind. The exit
code is 1 if an SLO is missed; a sentence says which.
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

from benchmarks.disconnects import cancel_over_grpc, drop_over_http, kill_client_process
from benchmarks.fixtures import bench_engine
from benchmarks.idle import wait_until_idle
from benchmarks.leak_detector import Growth, growth
from benchmarks.process_memory import MIB, ProcessTreeMemory
from benchmarks.prompts import Prompts
from benchmarks.traffic import ClientBehaviour, RandomWorkload, TrafficCounts, closed_loop, open_loop, read_to_end
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.process import ProcessInfo
from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY
from inflight.deploy.server.server import Server

MODEL = "qwen2.5-0.5b"
LOAD = 2.0
_SERVER = "tritonserver"
_PROGRESS_SECONDS = 15.0
_IDLE_TIMEOUT = 60.0
_MEASUREMENTS = 180


@dataclass(frozen=True)
class SoakPlan:
    """Duration, clients and SLOs of a soak.

    Lengths are in tokens; `disconnecting` is the fraction of the clients that do so. `min_work` is a fraction of the
    peak, `max_growth` of the memory after the warm-up.
    """

    seconds: float
    peak_seconds: float
    warm_up_seconds: float
    in_flight: int = 64
    prompt_tokens: int = 32
    shortest: int = 64
    longest: int = 192
    disconnecting: float = 0.05
    killed_streams: int = 4
    killed_every_seconds: float = 15.0
    min_work: float = 0.9
    max_growth: float = 0.03


@dataclass(frozen=True)
class SoakResult:
    """The result of a soak; `failures` has a sentence for each SLO that was missed."""

    peak_tokens_per_second: float
    tokens_per_second: float
    requests_per_second: float
    """Requests that were answered at the peak; twice as many arrived."""
    counts: dict[str, Any]
    memory: Growth
    memory_by_process: dict[str, tuple[float, float]]
    """MiB after the warm-up, and at the end."""
    disconnected_after_warm_up: int
    failures: list[str] = field(default_factory=list)

    @property
    def work(self) -> float:
        """Completed work per second, as a fraction of the peak's."""
        return self.tokens_per_second / self.peak_tokens_per_second

    @property
    def kib_per_disconnect(self) -> float:
        """Growth of tritonserver after the warm-up, per client that disconnected since."""
        begin, end = self.memory_by_process[_SERVER]
        return (end - begin) * 1024 / max(1, self.disconnected_after_warm_up)


def soak(engine: Path, options: DeploymentOptions, plan: SoakPlan, on_message: Callable[[str], None]) -> SoakResult:
    """Serve an engine, run the planned load, stop the server, and look for leftovers."""
    server = Server(engine, options)
    with server:
        family = list(server.instance.process_tree)
        prefix = server.run_directory.shm_prefix
        prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
        workload = RandomWorkload(prompts, plan.prompt_tokens, plan.shortest, plan.longest)
        verdict = asyncio.run(_load(server, family, workload, plan, on_message))
        held = wait_until_idle(server, _IDLE_TIMEOUT)
        restarts = server.restarts
    failures = list(verdict.failures)
    if held:
        failures.append(f"the engine did not become idle: {held}")
    if restarts:
        failures.append(f"the server died {restarts} times")
    failures += _remaining(family, prefix)
    return replace(verdict, failures=failures)


async def _load(
    server: Server, family: list[ProcessInfo], workload: RandomWorkload, plan: SoakPlan, report: Callable[[str], None]
) -> SoakResult:
    peak, rate = await _peak(server, workload, plan, report)
    tally = TrafficCounts()
    with ProcessTreeMemory(family, period_seconds=plan.seconds / _MEASUREMENTS) as memory:
        begin = time.monotonic()
        warm = asyncio.create_task(_disconnected_after(plan.warm_up_seconds, tally))
        reporting = asyncio.create_task(_report_progress(begin, tally, memory, report))
        await _overload(server, workload, plan, rate * LOAD, tally)
        end = begin + plan.seconds
        reporting.cancel()
    grown = growth(memory.total, plan.warm_up_seconds)
    # Skip the start, when few clients are connected and the queue is not full yet.
    work = tally.tokens_per_second(begin + min(plan.warm_up_seconds, plan.seconds / 5), end)
    verdict = SoakResult(
        peak_tokens_per_second=peak,
        tokens_per_second=work,
        requests_per_second=rate,
        counts={name: value for name, value in asdict(tally).items() if name != "delivered"},
        memory=grown,
        memory_by_process={
            name: (one.begin / MIB, one.end / MIB)
            for name, series in memory.by_process.items()
            for one in [growth(series, plan.warm_up_seconds)]
        },
        disconnected_after_warm_up=tally.disconnected - await warm,
    )
    return replace(verdict, failures=_failures(verdict, plan, tally))


async def _peak(
    server: Server, workload: RandomWorkload, plan: SoakPlan, report: Callable[[str], None]
) -> tuple[float, float]:
    """Return tokens and answers per second with `in_flight` streams, without the first third, when they start."""
    tally = TrafficCounts()
    begin = time.monotonic()
    await closed_loop(server.grpc_address, workload, plan.in_flight, plan.peak_seconds, tally)
    tokens = tally.tokens_per_second(begin + plan.peak_seconds / 3, begin + plan.peak_seconds)
    rate = tokens / ((plan.shortest + plan.longest) / 2)
    report(f"Peak: {tokens:.0f} tokens/s, {rate:.1f} answers/s with {plan.in_flight} streams in flight.")
    if tally.failures or tally.hung or not tokens:
        raise RuntimeError(f"the peak can't be measured: {tally.failures}, {tally.hung} hang")
    return tokens, rate


async def _overload(
    server: Server, workload: RandomWorkload, plan: SoakPlan, per_second: float, tally: TrafficCounts
) -> None:
    source = random.Random(2)
    leave: list[ClientBehaviour] = [cancel_over_grpc(source), drop_over_http(server.http_address, source)]

    def choose() -> ClientBehaviour:
        return source.choice(leave) if source.random() < plan.disconnecting else read_to_end

    async def kill_again_and_again() -> None:
        deadline = time.monotonic() + plan.seconds - plan.killed_every_seconds
        while time.monotonic() < deadline:
            await asyncio.sleep(plan.killed_every_seconds)
            await kill_client_process(server.grpc_address, plan.killed_streams, plan.longest, tally)

    await asyncio.gather(
        open_loop(server.grpc_address, workload, per_second, plan.seconds, tally, choose), kill_again_and_again()
    )


async def _disconnected_after(seconds: float, tally: TrafficCounts) -> int:
    await asyncio.sleep(seconds)
    return tally.disconnected


async def _report_progress(
    begin: float, tally: TrafficCounts, memory: ProcessTreeMemory, report: Callable[[str], None]
) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        now = time.monotonic()
        report(
            f"{now - begin:5.0f} s: {tally.tokens_per_second(now - _PROGRESS_SECONDS, now):.0f} tokens/s,"
            f" {tally.completed} completed, {tally.disconnected} vanished, {tally.rejected} refused,"
            f" {sum(tally.failures.values())} broken, {memory.mib:.1f} MiB"
        )


def _failures(verdict: SoakResult, plan: SoakPlan, tally: TrafficCounts) -> list[str]:
    failures = []
    if verdict.work < plan.min_work:
        failures.append(f"completed work fell to {verdict.work:.3f} of the peak (SLO: {plan.min_work})")
    if verdict.memory.exceeds(plan.max_growth):
        failures.append(f"memory grew by {verdict.memory.fraction:.1%}, the SLO is less than {plan.max_growth:.0%}")
    if tally.hung or tally.failures:
        failures.append(f"{tally.hung} requests hung, and these failed: {dict(tally.failures)} {tally.messages or ''}")
    if not tally.rejected:
        failures.append("nothing was rejected, so this was no overload")
    if not tally.disconnected:
        failures.append("no client disconnected")
    return failures


def _remaining(family: list[ProcessInfo], prefix: str) -> list[str]:
    left = [f"{member.name} (pid {member.pid}) still runs" for member in family if member.is_running()]
    regions = [region.name for region in SHARED_MEMORY_DIRECTORY.glob(f"{prefix}*")]
    return left + ([f"shared memory is left: {', '.join(regions)}"] if regions else [])


@click.command(help=__doc__)
@click.option("--minutes", default=15.0, show_default=True, type=click.FloatRange(0.5, 24 * 60))
@click.option(
    "--engine", type=click.Path(exists=True, path_type=Path), help="Engine directory; default: that of `make bench`."
)
@click.option("--disconnecting", default=SoakPlan.disconnecting, show_default=True, type=click.FloatRange(0, 1))
@click.option("--out", type=click.Path(path_type=Path), default=Path(".cache/bench/soak.json"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, the progress on stderr.")
def main(minutes: float, engine: Path | None, disconnecting: float, out: Path, as_json: bool) -> None:
    console = Console(stderr=as_json, highlight=False)
    seconds = minutes * 60
    plan = SoakPlan(
        seconds,
        peak_seconds=min(90.0, seconds / 4),
        warm_up_seconds=min(120.0, seconds / 4),
        disconnecting=disconnecting,
    )
    options = DeploymentOptions(kv_cache_tokens=32768, max_queue_size=plan.in_flight)
    verdict = soak(engine or bench_engine(MODEL, "bf16"), options, plan, partial(console.print, soft_wrap=True))
    figures = {
        "minutes": minutes,
        **asdict(verdict),
        "work": verdict.work,
        "kib_per_disconnect": verdict.kib_per_disconnect,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=2))
    if as_json:
        print(json.dumps(figures))
    else:
        _show(console, plan, verdict)
        console.print(f"All figures: {out}")
    raise SystemExit(1 if verdict.failures else 0)


def _show(console: Console, plan: SoakPlan, verdict: SoakResult) -> None:
    table = Table(title="Twice the load that the server can handle")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("promised", justify="right")
    table.add_row("peak, tokens/s", f"{verdict.peak_tokens_per_second:.0f}", "")
    table.add_row("completed work, tokens/s", f"{verdict.tokens_per_second:.0f}", "")
    table.add_row("of the peak", f"{verdict.work:.3f}", f"{plan.min_work} or more")
    memory = verdict.memory
    table.add_row("memory after the warm-up, MiB", f"{memory.begin / MIB:.1f}", "")
    table.add_row("memory at the end, MiB", f"{memory.end / MIB:.1f}", "")
    table.add_row(
        "growth (windows, trend)", f"{memory.windows:+.2%}, {memory.trend:+.2%}", f"under {plan.max_growth:.0%}"
    )
    for name, (begin, end) in verdict.memory_by_process.items():
        table.add_row(f"  {name}, MiB", f"{begin:.1f} to {end:.1f}", "")
    table.add_row("tritonserver's growth per disconnected client, KiB", f"{verdict.kib_per_disconnect:.0f}", "")
    for name, value in verdict.counts.items():
        table.add_row(f"requests {name}", str(value or 0), "0" if name in ("hung", "failures", "not_sent") else "")
    console.print(table)
    for failure in verdict.failures:
        console.print(f"FAILED: {failure}", soft_wrap=True)
    if not verdict.failures:
        console.print("Every SLO was met.")


if __name__ == "__main__":
    main()

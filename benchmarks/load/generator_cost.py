"""`make bench`: the cost of the load generator at 2,000 token events per second, and whether it keeps its schedule.

Streams of the fake engine's answers, over gRPC and over HTTP, at equal intervals. The server shares the processors with
the generator, so on a small machine the schedule's lag is caused by both; the generator's processor time is its own.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine, fake_engine
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from loadtests.analysis.summarize import summarize
from loadtests.plan import Arrivals, LoadPlan
from loadtests.run.controller import run_load_test
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec


@dataclass(frozen=True)
class GeneratorCost:
    """One run: tokens received per second, processor cores of the generator, and lags in seconds.

    `load_average` is the machine's over the last minute, at the run's end. `waiting` is the fraction of time in which
    any process of the machine waited for a processor, if Linux reports it (pressure stall information).
    """

    protocol: str
    tokens_per_second: float
    cores: float
    cores_peak: float
    lag_p50: float
    lag_p99: float
    loop_lag: float
    load_average: float
    waiting: float | None
    unreliable_reasons: tuple[str, ...]


@click.command(help=__doc__)
@click.option("--like", default="tiny-llama", show_default=True, help="Model whose tokenizer is used.")
@click.option("--tokens-per-second", default=2000, show_default=True)
@click.option("--streams", default=80, show_default=True, help="Concurrent streams.")
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--seconds", default=15.0, show_default=True)
@click.option("--workers", default=1, show_default=True, help="Processes of the generator.")
@out_option("load_generator_cost")
def main(
    like: str, tokens_per_second: int, streams: int, max_tokens: int, seconds: float, workers: int, out: Path
) -> None:
    step = streams / tokens_per_second
    with Server(bench_engine(like, "fp32"), _engine(step, streams, max_tokens)) as server:
        addresses = {"gRPC": server.grpc_address, "HTTP": f"http://{server.http_address}"}
        plans = {name: _plan(address, tokens_per_second, max_tokens, seconds) for name, address in addresses.items()}
        page = f"http://{server.metrics_address}/metrics"
        costs = [_measure(name, plan, page, WorkerSpec(workers)) for name, plan in plans.items()]
    figures = []
    for one in costs:
        at = f"{one.protocol}, {tokens_per_second} tokens/s asked for"
        figures += [
            Figure(f"tokens/s received, {at}", [one.tokens_per_second]),
            Figure(f"processor cores of the generator, {at}", [one.cores], "<= 1"),
            Figure(f"lag of the schedule, 99th percentile, {at}", [one.lag_p99 * 1e3], "<= 10", "ms"),
        ]
        for reason in one.unreliable_reasons:
            print(f"{one.protocol}: {reason}")
    report(out, figures, [asdict(one) for one in costs])


def _measure(protocol: str, plan: LoadPlan, metrics_url: str, workers: WorkerSpec) -> GeneratorCost:
    with tempfile.TemporaryDirectory() as place:
        directory = RunDirectory.create(Path(place) / "run")
        began, waited = time.monotonic(), _cpu_wait_seconds()
        run_load_test(plan.model_copy(update={"metrics_url": metrics_url}), directory, workers, lambda progress: None)
        waiting = None if waited is None else ((_cpu_wait_seconds() or 0.0) - waited) / (time.monotonic() - began)
        summary = summarize(directory)
    if summary.requests.completed < summary.requests.due:
        raise RuntimeError(f"not all requests were answered: {dict(summary.requests.messages)}")
    lag = summary.validity.schedule_lag
    assert lag is not None
    return GeneratorCost(
        protocol,
        summary.throughput.value,
        sum(summary.validity.cpu_cores.values()),
        summary.validity.cpu_peak,
        lag.p50,
        lag.p99,
        summary.validity.loop_lag,
        os.getloadavg()[0],
        waiting,
        summary.validity.reasons,
    )


def _cpu_wait_seconds() -> float | None:
    """Return the seconds since boot in which any process waited for a processor."""
    try:
        match = re.search(r"some .*total=(\d+)", Path("/proc/pressure/cpu").read_text())
    except OSError:
        return None
    return int(match[1]) / 1e6 if match else None


def _plan(address: str, tokens_per_second: int, max_tokens: int, seconds: float) -> LoadPlan:
    return LoadPlan(
        server=address,
        workload=WorkloadSpec(input_tokens="8", output_tokens=str(max_tokens)),
        arrivals=Arrivals(kind="rate", profile=str(tokens_per_second / max_tokens), process="constant"),
        warmup=5.0,
        seconds=seconds,
    )


def _engine(step_seconds: float, streams: int, max_tokens: int) -> DeploymentOptions:
    """Return options with room for more streams than expected, so that none waits."""
    return fake_engine(step_seconds, 1536, 8 * streams * (max_tokens + 128), 8 * streams)


if __name__ == "__main__":
    main()

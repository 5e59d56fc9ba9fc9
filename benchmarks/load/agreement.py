"""`make bench`: the same load measured by our load tests and by NVIDIA's perf_analyzer.

Both stream the same answers from the same server, whose engine is the fake one, one after the other, in pairs whose
order alternates; the results are the medians of the pairs' ratios. Definitions: docs/internals/load-test-accuracy.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np

from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import bench_engine, fake_engine
from benchmarks.load import perf_analyzer
from inflight.deploy.server.server import Server
from loadtests.analysis.summarize import summarize
from loadtests.plan import Arrivals, LoadPlan
from loadtests.run.controller import run_load_test
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec

GOAL = "0.95 to 1.05"
"""Of the ratios of the two."""


@dataclass(frozen=True)
class AgreementLoad:
    """A number of users, or requests per second at equal intervals; the first `warmup` seconds do not count."""

    kind: Literal["users", "rate"]
    level: int
    prompt: str
    max_tokens: int
    answer_seconds: float
    """Minimum seconds of an answer."""
    warmup: float = 2.0
    seconds: float = 8.0

    @property
    def requests(self) -> int:
        """More requests than can be sent until the end."""
        until = self.warmup + self.seconds + 1.0
        per_second = self.level if self.kind == "rate" else self.level / self.answer_seconds
        return int(until * per_second) + self.level


@dataclass(frozen=True)
class MeasuredLoad:
    """Tokens received per second, and the median time to a request's first token in seconds."""

    tokens_per_second: float
    ttft_p50: float


@dataclass(frozen=True)
class Agreement:
    """The results of both in each pair of runs, ours first."""

    load: AgreementLoad
    pairs: list[tuple[MeasuredLoad, MeasuredLoad]]

    @property
    def throughput(self) -> Figure:
        """Our throughput as a fraction of theirs."""
        return self._figure("tokens/s", lambda load: load.tokens_per_second)

    @property
    def ttft(self) -> Figure:
        """Our median time to the first token as a fraction of theirs."""
        return self._figure("TTFT p50", lambda load: load.ttft_p50)

    def _figure(self, what: str, of: Callable[[MeasuredLoad], float]) -> Figure:
        load = f"{self.load.level} {'users' if self.load.kind == 'users' else 'requests/s'}"
        ratios = [of(ours) / of(theirs) for ours, theirs in self.pairs]
        return Figure(f"{what} with {load}, inflight load / perf_analyzer", ratios, GOAL)


@click.command(help=__doc__)
@click.option("--like", default="tiny-llama", show_default=True, help="Model whose tokenizer is used.")
@click.option("--step-ms", default=100.0, show_default=True, help="Milliseconds between two tokens of a stream.")
@click.option("--users", default=16, show_default=True)
@click.option("--rate", default=8, show_default=True, help="Requests per second of the open loop.")
@click.option("--pairs", default=5, show_default=True)
@out_option("load_agreement")
def main(like: str, step_ms: float, users: int, rate: int, pairs: int, out: Path) -> None:
    program = perf_analyzer.install()
    levels: list[tuple[Literal["users", "rate"], int]] = [("users", users), ("rate", rate)]
    loads = [AgreementLoad(kind, level, "tell me about tea", 16, 16 * step_ms / 1e3) for kind, level in levels]
    with Server(bench_engine(like, "fp32"), fake_engine(step_ms / 1e3, 1536, 64 * 256)) as server:
        results = [compare(server.grpc_address, program, load, pairs, print) for load in loads]
    report(
        out,
        [figure for one in results for figure in (one.throughput, one.ttft)],
        [asdict(one) for one in results],
    )


def compare(
    address: str, program: Path, load: AgreementLoad, pairs: int, on_message: Callable[[str], None]
) -> Agreement:
    """Measure a server at the gRPC `address` in this many pairs of runs."""
    measured: list[tuple[MeasuredLoad, MeasuredLoad]] = []
    for pair in range(pairs):
        if pair % 2:
            theirs = measure_theirs(address, program, load)
            ours = measure_ours(address, load)
        else:
            ours = measure_ours(address, load)
            theirs = measure_theirs(address, program, load)
        measured.append((ours, theirs))
        figures = (f"{one.tokens_per_second:.1f} tokens/s, TTFT {one.ttft_p50 * 1e3:.1f} ms" for one in measured[-1])
        on_message(f"{load.level} {load.kind}, pair {pair + 1}: " + "; perf_analyzer: ".join(figures))
    return Agreement(load, measured)


def measure_ours(address: str, load: AgreementLoad) -> MeasuredLoad:
    with tempfile.TemporaryDirectory() as place:
        prompts = Path(place) / "prompts.jsonl"
        prompts.write_text(json.dumps({"prompt": load.prompt, "max_tokens": load.max_tokens}) + "\n")
        plan = LoadPlan(
            server=address,
            workload=WorkloadSpec(prompts=str(prompts)),
            arrivals=Arrivals(kind=load.kind, profile=str(load.level), process="constant"),
            warmup=load.warmup,
            seconds=load.seconds,
        )
        directory = RunDirectory.create(Path(place) / "run")
        run_load_test(plan, directory, WorkerSpec(), lambda progress: None)
        summary = summarize(directory)
    if summary.requests.completed < summary.requests.due:
        raise RuntimeError(f"not all requests were answered: {dict(summary.requests.messages)}")
    return MeasuredLoad(summary.throughput.value, summary.latencies["ttft"].p50)


def measure_theirs(address: str, program: Path, load: AgreementLoad) -> MeasuredLoad:
    """Measure from the exported times, over the same part of the run as ours, since it has no warm-up itself."""
    inputs = {"text_input": load.prompt, "max_tokens": load.max_tokens, "stream": True}
    level = "--concurrency-range" if load.kind == "users" else "--request-rate-range"
    requests = perf_analyzer.run(
        program, address, inputs, [level, str(load.level), "--request-count", str(load.requests)]
    )
    start = requests[0].sent + load.warmup
    end = start + load.seconds
    ttft = [one.responses[0] - one.sent for one in requests if start <= one.sent < end]
    responses = np.concatenate([one.responses for one in requests])
    return MeasuredLoad(float(((responses >= start) & (responses < end)).sum()) / load.seconds, float(np.median(ttft)))


if __name__ == "__main__":
    main()

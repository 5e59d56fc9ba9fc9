"""Sends the same load to two servers, in windows that alternate, so that a change of the machine affects both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.analysis.audit import mean_answer_tokens
from loadtests.analysis.comparison.result import SERVERS
from loadtests.analysis.run_data import RunData
from loadtests.analysis.summary import Summary
from loadtests.connection import connect, find_model
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.report.write_reports import write_run_report
from loadtests.run.audit_runner import run_audit
from loadtests.run.controller import run_load_test
from loadtests.run.sweep_runner import ShowRun, run_seed
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from loadtests.served_model import with_server_tokenizer

_TARGET = re.compile(r"(?P<server>[^,]+)(?P<options>(,(model|metrics)=[^,]+)*)")


def plan_against(plan: LoadPlan, target: str) -> LoadPlan:
    """Return the plan for the other server, `ADDRESS[,model=NAME][,metrics=URL]`. It has none of the plan's headers,
    which may be the first server's secrets. Raises LoadError `invalid_parameter`."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise LoadError(
            f"--against {target!r} can't be read; write ADDRESS, ADDRESS,model=NAME or ADDRESS,metrics=URL",
            "invalid_parameter",
        )
    options: dict[str, str] = dict(part.split("=", 1) for part in match["options"].split(",")[1:])
    update: dict[str, Any] = {"server": match["server"], "model": options.get("model"), "header": ()}
    return plan.model_copy(update={**update, "metrics_url": options.get("metrics")})


@dataclass(frozen=True)
class AlternatingWindows:
    """Two plans that differ only in the server, and the directory for `windows` runs of each.

    The order is A B, B A, A B: neither server always comes first. A window ends when its last answer has ended or its
    drain is over. The n-th windows of both have the same seed, so the same prompts and arrivals.
    """

    plans: tuple[LoadPlan, LoadPlan]
    directory: Path
    windows: int
    workers: WorkerSpec
    show_run: ShowRun

    def run(self) -> tuple[list[tuple[Summary, Summary]], bool]:
        """Return the summaries of each pair of windows, and whether Ctrl-C interrupted the test, which makes the last
        pair worthless. Raises as `run_load_test` does; KeyboardInterrupt if no pair is complete."""
        plans = self._with_one_tokenizer()
        pairs: list[tuple[Summary, Summary]] = []
        for pair in range(self.windows):
            found: dict[int, Summary] = {}
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                number = 2 * pair + len(found) + 1
                directory = RunDirectory.create(self.directory / f"{number:02}-{SERVERS[side]}")
                plan = plans[side].model_copy(update={"seed": run_seed(plans[side].seed, pair)})
                with self.show_run(plan, f"window {number} of {2 * self.windows}, {SERVERS[side]}") as shown:
                    interrupted = run_load_test(plan, directory, self.workers, shown)
                if interrupted:
                    if not pairs:
                        raise KeyboardInterrupt
                    return pairs, True
                found[side], _ = write_run_report(directory, self.directory)
                shown.finish(found[side])
            pairs.append((found[0], found[1]))
        return pairs, False

    def audit(self) -> tuple[tuple[Summary, Summary], bool]:
        """Audit both servers in their first windows; return the summaries of these, and whether Ctrl-C interrupted it.
        The mean length of the answers of one server is the reference for the other."""
        runs = [directories[0] for directories in complete_windows(self.directory)]
        lengths = [mean_answer_tokens(RunData.read(run)) for run in runs]
        interrupted = False
        for plan, run, reference in zip(self.plans, runs, reversed(lengths), strict=True):
            interrupted = interrupted or run_audit(plan, run, self.workers, self.show_run, reference)
        first, second = (write_run_report(run, self.directory)[0] for run in runs)
        return (first, second), interrupted

    def _with_one_tokenizer(self) -> tuple[LoadPlan, LoadPlan]:
        """Return the plans with the tokenizer of the first server that has its own on this machine: prompts that each
        server's tokenizer generates would differ. Raises InflightError if a server is unreachable."""
        served = []
        for plan in self.plans:
            with connect(plan) as client:
                served.append(find_model(plan, client).facts)
        for facts in served:
            workload = with_server_tokenizer(self.plans[0], facts).workload
            if workload.tokenizer is not None:
                first, second = (plan.model_copy(update={"workload": workload}) for plan in self.plans)
                return first, second
        return self.plans


def complete_windows(directory: Path) -> tuple[list[RunDirectory], list[RunDirectory]]:
    """Return the windows of each server in the directory of a test, without those of an incomplete last pair."""
    runs = [[RunDirectory(path) for path in sorted(directory.glob(f"[0-9]*-{side}"))] for side in SERVERS]
    pairs = []
    for pair in zip(*runs, strict=False):
        if all((run.path / "report.json").exists() for run in pair):
            pairs.append(pair)
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

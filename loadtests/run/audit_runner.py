"""Makes the additional requests of an audit: one sample again and again, and answers that are looked at token by token.

The checks are those of MLPerf Inference's compliance tests; `loadtests.analysis.audit` evaluates them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import count, islice
from typing import Any

from inflight_client import Client, Delta, InflightError, Sampling

from loadtests.analysis.audit import AUDIT, AnswerFacts, answers_file
from loadtests.connection import connect
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.run.controller import run_load_test
from loadtests.run.sweep_runner import ShowRun
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.interface import RequestSpec
from loadtests.workloads.spec import WorkloadSpec

_CANDIDATES = 64
"""Sessions among which the sample is chosen whose lengths are nearest to the mean."""
_ANSWERS = 32
"""Answers that are looked at; MLPerf's test looks at 100."""
_AT_ONCE = 4


def check_audit(plan: LoadPlan) -> None:
    """Raises LoadError if the plan can't be audited."""
    if plan.encodes or plan.arrivals.kind == "trace":
        raise LoadError("--audit looks at generated answers, with --users or --rate; leave it out", "invalid_parameter")


def run_audit(
    plan: LoadPlan, run: RunDirectory, workers: WorkerSpec, show_run: ShowRun, reference_tokens: float | None = None
) -> bool:
    """Audit the server of the run in `run`, whose own plan has no headers; `plan` has them. The results go to its
    directory `audit`. Return whether Ctrl-C interrupted the audit.

    `reference_tokens` is the mean length of answers that is right, such as that of another server. Raises as
    `run_load_test` does.
    """
    written = run.plan()
    requests = list(islice(_single_requests(written), _CANDIDATES))
    directory = RunDirectory.create(run.path / AUDIT)
    sample = directory.path / "sample.jsonl"
    chosen = _nearest_to_mean(requests)
    prompt = {"prompt": chosen.prompt} if isinstance(chosen.prompt, str) else {"messages": chosen.prompt}
    sample.write_text(json.dumps({**prompt, "max_tokens": chosen.max_tokens}) + "\n")
    repeated = WorkloadSpec(prompts=str(sample), prompt_format=written.workload.prompt_format)
    same = written.model_copy(update={"workload": repeated, "header": plan.header, "slo": ()})
    with show_run(same, "audit") as shown:
        if run_load_test(same, directory, workers, shown):
            return True
    with connect(plan) as client, ThreadPoolExecutor(_AT_ONCE) as pool:
        facts = list(pool.map(lambda request: _look_at(client, plan, request), requests[:_ANSWERS]))
    answers_file(run).write_text("".join(json.dumps(asdict(each)) + "\n" for each in facts))
    directory.write_metadata({**directory.metadata(), "reference_tokens": reference_tokens})
    return False


def _single_requests(plan: LoadPlan) -> Iterator[RequestSpec]:
    """Yield the first request of each session."""
    workload = make_workload(plan.workload, load_files(plan.workload), plan.seed)
    for number in count():
        if (session := workload.session(number)) is None:
            return
        first = next(session.requests(), None)
        if isinstance(first, RequestSpec):
            yield first


def _nearest_to_mean(requests: Sequence[RequestSpec]) -> RequestSpec:
    """Return the request whose prompt and answer are nearest to the mean length, so that it costs what others do."""
    lengths = [(len(json.dumps(request.prompt)), request.max_tokens) for request in requests]
    means = [sum(column) / len(lengths) for column in zip(*lengths, strict=True)]
    distances = [sum(abs(own / mean - 1) for own, mean in zip(pair, means, strict=True)) for pair in lengths]
    return requests[distances.index(min(distances))]


def _look_at(client: Client, plan: LoadPlan, request: RequestSpec) -> AnswerFacts:
    """Generate the answer twice, streamed and whole, greedily and with its natural end. Raises InflightError."""
    options: dict[str, Any] = {"max_tokens": request.max_tokens, "timeout": plan.timeout, "tenant": plan.tenant}
    options["sampling"] = Sampling(temperature=0)
    deltas = _deltas_with_tokens(client, request, options)
    first = next((delta.text for delta in deltas if delta.text), "")
    whole = client.generate(request.prompt, **options)
    tokens = [_count_tokens(delta) for delta in deltas]
    counted = None if None in tokens[:-1] or not any(tokens) else [number or 0 for number in tokens]
    silent = 0
    for delta, number in zip(reversed(deltas), reversed(counted or ()), strict=False):
        if delta.text:
            break
        silent += number
    return AnswerFacts(
        first_token_repeated=whole.text.startswith(first),
        reported_tokens=deltas[-1].output_tokens if deltas else None,
        counted_tokens=None if counted is None else sum(counted),
        silent_tokens=None if counted is None else silent,
    )


def _deltas_with_tokens(client: Client, request: RequestSpec, options: dict[str, Any]) -> list[Delta]:
    """Return the streamed answer with its token ids or log-probabilities, as far as the server returns them."""
    for asked in ("return_token_ids", "return_log_probs"):
        evidence: dict[str, Any] = {**options, asked: True}
        try:
            with client.stream(request.prompt, **evidence) as stream:
                return list(stream)
        except InflightError as error:
            if error.code != "unsupported_input":
                raise
    with client.stream(request.prompt, **options) as stream:
        return list(stream)


def _count_tokens(delta: Delta) -> int | None:
    found = delta.token_ids if delta.token_ids is not None else delta.log_probs
    return None if found is None else len(found)

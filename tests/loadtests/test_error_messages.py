"""The wording of a load test's errors; INFLIGHT_UPDATE_GOLDEN=1 writes messages.txt again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from loadtests.analysis.comparison.compare import compare
from loadtests.analysis.rate_search import RateSearch
from loadtests.analysis.slo import Slo
from loadtests.analysis.summary import Summary
from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_times
from loadtests.plan import Arrivals
from loadtests.plan_options import plan_from_options
from loadtests.report.write_reports import read_figures
from loadtests.run_directory import RunDirectory
from loadtests.workloads.exact_text import ExactTextGenerator
from loadtests.workloads.factory import make_workload
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.errors import Cause, check_messages
from tests.loadtests import test_plan_options
from tests.loadtests.arrivals import test_profile
from tests.loadtests.arrivals.test_schedule import rate
from tests.loadtests.workloads import test_distributions
from tests.loadtests.workloads.test_factory import WITHOUT_EFFECT


def prompts(data: bytes, **fields: Any) -> Cause:
    return partial(make_workload, WorkloadSpec(prompts="my.jsonl", **fields), {"my.jsonl": data}, 0)


def test_sentences(tmp_path: Path) -> None:
    def report(name: str, text: str) -> Cause:
        (tmp_path / name).write_text(text)
        return partial(read_figures, tmp_path / name, Summary)

    run = RunDirectory(tmp_path / "run")
    causes: list[Cause] = [
        partial(due_times, rate("1", "gamma", 0.001), 0, 1.0),
        *(partial(Profile.parse, text) for text in test_profile.INVALID),
        partial(due_times, Arrivals(kind="users"), 0, 1.0),
        partial(due_times, rate("x"), 0, 1.0),
        partial(Slo.parse, "p99 error_rate <= 1%"),
        partial(Slo.parse, "ttft"),
        *(partial(RateSearch, start) for start in (0.0, -1.0, float("inf"))),
        *(partial(RateSearch, 1.0, **options) for options in ({"tolerance": 0.0}, {"max_runs": 0})),
        partial(compare, [], []),
        partial(compare, [run], [run], threshold=-0.1),
        partial(compare, [run], [run]),
        partial(read_figures, tmp_path / "gone.json", Summary),
        report("list.json", "[]"),
        report("nan.json", '{"format": 1, "measured_seconds": NaN}'),
        report("empty.json", "{}"),
        report("new.json", '{"format": 99}'),
        report("cut.json", "{"),
        report("deep.json", "[" * 100_000),
        report("lacking.json", '{"format": 1}'),
        prompts(b""),
        prompts(b"{"),
        prompts(b"\xff\n"),
        prompts(b'{"id": 1}\n'),
        prompts(b'{"prompt": "a"}\n', output_tokens="x"),
        *(partial(test_distributions.made, text) for text in test_distributions.INVALID),
        *(partial(make_workload, WorkloadSpec(**fields), {}, 0) for fields in WITHOUT_EFFECT),
        *(partial(plan_from_options, given) for given in test_plan_options.INVALID),
        partial(ExactTextGenerator, b"{}", "it"),
    ]
    check_messages(Path(__file__).with_name("messages.txt"), causes, tmp_path)

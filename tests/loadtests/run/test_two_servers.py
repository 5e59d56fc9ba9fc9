"""Windows of two servers, and what is made of them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest

from inflight.commands.load.display import LoadProgressLines
from inflight.deploy.server.server import Server
from loadtests.analysis.comparison.result import ChangeVerdict
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.report.write_reports import write_servers_report
from loadtests.run import two_servers
from loadtests.run.two_servers import AlternatingWindows, complete_windows, plan_against
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import record, steady_generator, write_run
from tests.fixtures.page_reader import read
from tests.loadtests.run.plans import plan

PLAN = LoadPlan(server="a:1", model="mine", metrics_url="http://a/metrics", header=("Authorization: secret",))


@pytest.mark.parametrize(
    ("target", "server", "model", "metrics"),
    [
        ("b:2", "b:2", None, None),
        ("http://b/v1,model=tea", "http://b/v1", "tea", None),
        ("b:2,metrics=http://b/metrics,model=tea", "b:2", "tea", "http://b/metrics"),
    ],
)
def test_the_other_server_has_its_own_model_and_metrics_and_no_secret(
    target: str, server: str, model: str | None, metrics: str | None
) -> None:
    found = plan_against(PLAN, target)
    assert (found.server, found.model, found.metrics_url, found.header) == (server, model, metrics, ())


@pytest.mark.parametrize("target", ["", ",model=tea", "b:2,speed=3", "b:2,model=", "b:2,,model=a"])
def test_what_is_no_target_is_refused_with_its_syntax(target: str) -> None:
    with raises(LoadError, "invalid_parameter", naming=("ADDRESS,model=NAME",)):
        plan_against(PLAN, target)


def window(path: Path, slower: float, requests: int = 160) -> None:
    """Requests whose times vary by a tenth; a window without a report was interrupted."""
    random = Random(path.name)
    noise = [slower * random.uniform(0.9, 1.1) for _ in range(requests)]
    records = [
        record(i, i * 0.1, ttft=0.1 * noise[i], gaps=[0.02 * noise[i]] * 4, input_tokens=round(10 * slower))
        for i in range(requests)
    ]
    write_run(path, records, LoadPlan(seconds=16), generator=steady_generator(16, requests))
    (path / "report.json").touch()


def test_neither_server_always_comes_first_and_both_get_the_same_prompts(
    paced_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []

    def run(plan: LoadPlan, directory: RunDirectory, workers: WorkerSpec, shown: object) -> bool:
        made.append((directory.path.name, plan.seed))
        directory.path.rmdir()
        write_run(directory.path, [record(0, 0.0)], plan)
        return len(made) == 6  # Ctrl-C in the last one

    monkeypatch.setattr(two_servers, "run_load_test", run)
    plans = plan(paced_server), plan(paced_server)
    test = AlternatingWindows(
        plans, tmp_path, 3, WorkerSpec(), lambda plan, title: nullcontext(LoadProgressLines(plan, title))
    )
    pairs, interrupted = test.run()
    names = ["01-server", "02-against", "03-against", "04-server", "05-server", "06-against"]
    assert [name for name, _ in made] == names
    seeds = [seed for _, seed in made]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 3
    assert (len(pairs), interrupted) == (2, True)
    assert [len(side) for side in complete_windows(tmp_path)] == [2, 2]


def test_windows_are_compared_in_pairs_and_no_server_is_a_regression(tmp_path: Path) -> None:
    for number, (side, slower) in enumerate([("server", 1.0), ("against", 1.3)] * 2, 1):
        window(tmp_path / f"{number:02}-{side}", slower)
    window(tmp_path / "05-server", 1.0, requests=40)  # its pair is missing
    sides = complete_windows(tmp_path)
    assert [[run.path.name for run in side] for side in sides] == [
        ["01-server", "03-server"],
        ["02-against", "04-against"],
    ]
    found = write_servers_report(sides, tmp_path)
    changes = {change.metric: change for change in found.changes}
    ttft = changes["p50 ttft"]
    assert (ttft.verdict, found.label(ttft.verdict)) == (ChangeVerdict.WORSE, "server is better")
    assert found.label(changes["error_rate"].verdict) == "cannot tell"
    assert found.regressions == ()
    assert ttft.before_interval is not None
    assert ttft.before is not None
    assert ttft.before_interval[0] <= ttft.before <= ttft.before_interval[1]
    assert any("10 tokens for server and 13 for against" in warning for warning in found.warnings)
    page = (tmp_path / "report.html").read_text()
    text = read(page)
    assert "server is better" in text
    assert "cannot tell" in text
    assert "regression" not in text.split("Definitions")[0]
    assert 'href="02-against/report.html"' in page
    assert (tmp_path / "comparison.json").exists()

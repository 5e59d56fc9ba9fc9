from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Validity
from loadtests.arrivals.schedule import due_times
from loadtests.plan import Arrivals, LoadPlan
from loadtests.record import RequestRecord
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.load_runs import OPEN_LOOP, generator_sample, record, steady_generator, write_run

SECONDS = 20
OPEN = LoadPlan(seconds=SECONDS, arrivals=OPEN_LOOP)


def on_time(**changes: dict[int, float]) -> list[RequestRecord]:
    """One a second; `lag` makes some late, by their numbers."""
    lag = changes.get("lag", {})
    return [record(i, float(i), sent=i + lag.get(i, 0.001)) for i in range(SECONDS)]


def graded(
    tmp_path: Path, records: list[RequestRecord], plan: LoadPlan = OPEN, generator: list[dict[str, Any]] | None = None
) -> Validity:
    samples = steady_generator(SECONDS, len(records)) if generator is None else generator
    return summarize(write_run(tmp_path / "run", records, plan, generator=samples)).validity


def test_a_generator_that_had_an_easy_time_is_trusted(tmp_path: Path) -> None:
    grade = graded(tmp_path, on_time())
    assert grade.reasons == ()
    assert grade.schedule_lag is not None
    assert grade.schedule_lag.p99 == pytest.approx(0.001)
    assert grade.cpu_cores == {"0": pytest.approx(0.2)}
    assert (grade.cpu_peak, grade.loop_lag) == (0.2, 0.001)


@pytest.mark.parametrize(
    ("lag", "plan", "trusted"),
    # In a closed loop there is no schedule to keep.
    [(0.0099, OPEN, True), (0.02, OPEN, False), (0.05, LoadPlan(seconds=SECONDS), True)],
)
def test_a_schedule_that_was_not_kept_is_told(tmp_path: Path, lag: float, plan: LoadPlan, trusted: bool) -> None:
    grade = graded(tmp_path, on_time(lag=dict.fromkeys(range(SECONDS), lag)), plan)
    assert (not grade.reasons) is trusted
    assert trusted or "at least 20 ms late" in grade.reasons[0]


@pytest.mark.parametrize(("full", "trusted"), [(0, True), (1, True), (2, False), (SECONDS, False)])
def test_a_process_that_used_up_its_core_is_named(tmp_path: Path, full: int, trusted: bool) -> None:
    samples = steady_generator(SECONDS, SECONDS) + [
        generator_sample(3, t + 1.0, cpu=0.97 if t < full else 0.5) for t in range(SECONDS)
    ]
    grade = graded(tmp_path, on_time(), generator=samples)
    assert (not grade.reasons) is trusted
    if not trusted:
        assert (
            f"process 3 of the load generator used more than 90% of a core in {full} of 20 seconds" in grade.reasons[0]
        )
    assert grade.cpu_peak == (0.97 if full else 0.5)


@pytest.mark.parametrize(
    ("seconds", "stalls", "trusted"),
    [
        (20, [0.25], False),
        (60, [0.25], True),
        (60, [0.5], True),
        (60, [0.7], False),
        (60, [0.3, 0.4], False),
        (600, [0.5] * 11, True),
        (600, [0.5] * 13, False),
        (60, [0.09] * 60, True),
    ],
)
def test_event_loops_that_stood_still_long_enough_to_move_a_percentile_are_told(
    tmp_path: Path, seconds: int, stalls: list[float], trusted: bool
) -> None:
    samples = steady_generator(seconds, seconds)
    for stall, one in zip(stalls, samples, strict=False):
        one["lag"] = stall
    records = [record(i, float(i), sent=i + 0.001) for i in range(seconds)]
    grade = graded(tmp_path, records, OPEN.model_copy(update={"seconds": seconds}), samples)
    assert (not grade.reasons) is trusted
    assert grade.loop_lag == max(stalls)
    if not trusted:
        share = sum(stalls) / seconds
        assert f"were blocked for {share:.1%} of the time, once for {max(stalls) * 1e3:.0f} ms" in grade.reasons[0]


def test_what_happens_in_the_warm_up_or_behind_the_end_does_not_count(tmp_path: Path) -> None:
    plan = OPEN.model_copy(update={"warmup": 5.0, "seconds": 15.0})
    samples = [
        *steady_generator(SECONDS, SECONDS),
        generator_sample(0, 2.0, cpu=1.0, lag=0.9),
        generator_sample(0, 25.0, cpu=1.0, lag=0.9),
    ]
    assert graded(tmp_path, on_time(lag={0: 0.5, 1: 0.5}), plan, samples).reasons == ()


@pytest.mark.parametrize(
    ("records", "samples", "says"),
    [
        (
            on_time(),
            [*steady_generator(SECONDS, 15), *(generator_sample(1, t + 1.0, sent=t // 2) for t in range(SECONDS))],
            "4 of 24 requests that were sent have no record",
        ),
        ([*on_time(), record(7, 7.0)], None, "1 requests have more than one record, such as turn 0 of session 7"),
        (
            [one for one in on_time() if one.session % 4 != 1],
            None,
            "15 of the 20 scheduled sessions were started",
        ),
        (
            [one for one in on_time()[:12] if one.session != 4],
            steady_generator(12, 11, exhausted=True),
            "11 of the 20 scheduled sessions were started",
        ),
        (on_time(lag={19: 1.5}), None, "1 requests were sent after the run's end"),
        (on_time(), [], "wrote no samples"),
    ],
    ids=["lost worker", "twice", "not begun", "not begun, and no more", "late", "no samples"],
)
def test_records_that_do_not_match_what_was_sent_or_scheduled_are_told(
    tmp_path: Path, records: list[RequestRecord], samples: list[dict[str, Any]] | None, says: str
) -> None:
    *others, last = graded(tmp_path, records, generator=samples).reasons
    assert says in last
    assert len(others) == says.endswith("after the run's end"), "it was late too"


PLANS = {
    "rate": OPEN,
    "users": LoadPlan(seconds=SECONDS),
    "trace": LoadPlan(seconds=SECONDS, workload=WorkloadSpec(trace="trace.jsonl"), arrivals=Arrivals(kind="trace")),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_workload_that_has_no_more_sessions_is_no_fault(tmp_path: Path, plan: LoadPlan) -> None:
    samples = steady_generator(12, 12, exhausted=True) + [
        {**one, "worker": 1, "sent": 0} for one in steady_generator(9, 0, exhausted=True)
    ]
    found = summarize(write_run(tmp_path / "run", on_time()[:12], plan, generator=samples))
    assert found.validity.reasons == ()
    assert found.measured_seconds == pytest.approx(11.111), "to the last answer"
    assert found.offered_per_second == pytest.approx(12 / 11.111)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_run_that_was_killed_while_there_was_more_is_told(tmp_path: Path, plan: LoadPlan) -> None:
    samples = steady_generator(12, 12, exhausted=True) + [
        {**one, "worker": 1, "sent": 0} for one in steady_generator(12, 0)
    ]
    (reason,) = graded(tmp_path, on_time()[:12], plan, samples).reasons
    assert "the run ended 8 s early" in reason


@pytest.mark.parametrize("exhausted", [True, False])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_run_that_was_interrupted_is_told(tmp_path: Path, plan: LoadPlan, exhausted: bool) -> None:
    directory = write_run(tmp_path / "run", on_time()[:12], plan, generator=steady_generator(12, 12, exhausted))
    directory.write_metadata({"interrupted": True})
    found = summarize(directory)
    assert found.validity.reasons == ("it was interrupted after 12 of 20 seconds",)
    assert found.measured_seconds == 12


def test_a_schedule_with_nothing_due_at_its_end_is_whole(tmp_path: Path) -> None:
    plan = OPEN.model_copy(update={"arrivals": OPEN_LOOP.model_copy(update={"profile": "1/12s,0"})})
    dues = list(due_times(plan.arrivals, plan.seed, plan.end))
    records = [record(i, due, sent=due + 0.001) for i, due in enumerate(dues)]
    found = summarize(
        write_run(tmp_path / "run", records, plan, generator=steady_generator(13, len(dues), exhausted=True))
    )
    assert found.validity.reasons == ()
    assert found.measured_seconds == SECONDS


def test_turns_of_a_conversation_are_not_sessions(tmp_path: Path) -> None:
    plan = LoadPlan(seconds=SECONDS, arrivals=OPEN_LOOP.model_copy(update={"generator_sample": "poisson"}), seed=3)
    dues = list(due_times(plan.arrivals, plan.seed, plan.end))
    records = [record(i, due + turn, turn=turn) for i, due in enumerate(dues) for turn in (0, 1)]
    assert graded(tmp_path, records, plan).reasons == ()
    missing = [one for one in records if one.session != 2]
    (reason,) = summarize(
        write_run(tmp_path / "b", missing, plan, generator=steady_generator(SECONDS, len(missing)))
    ).validity.reasons
    assert reason == f"{len(dues) - 1} of the {len(dues)} scheduled sessions were started"

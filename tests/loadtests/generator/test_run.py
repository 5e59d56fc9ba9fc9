"""Every kind of load, made by real generators against one server: what is sent when, and what is written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from loadtests.arrivals.schedule import due_times
from loadtests.plan import Arrivals, LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.load_generator import TIMEOUT, by_session, generator_command, running_generator
from tests.fixtures.load_runs import read_records
from tests.fixtures.server import STEP_SECONDS

TOKENS = 8
SHORT = WorkloadSpec(input_tokens="6", output_tokens=str(TOKENS))
SECONDS = 2.0
OPEN = Arrivals(kind="rate", profile="12")
TRACE_SECONDS = (0.0, 1.0, 1.5, 30.0)
ROUND = 1e-5
"""Moments are written to the microsecond."""


@dataclass(frozen=True)
class LoadResult:
    plan: LoadPlan
    records: list[RequestRecord]
    samples: list[dict[str, object]]
    output: str


def plans(server: Server, place: Path) -> dict[str, tuple[LoadPlan, int]]:
    """Each load by its name, with the number of its processes."""
    grpc, http = server.grpc_address, f"http://{server.http_address}"
    trace = place / "trace.jsonl"
    rows = [{"timestamp": s * 1e3, "input_length": 5, "output_length": TOKENS} for s in TRACE_SECONDS]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns = WorkloadSpec(input_tokens="4", output_tokens="3", turns="3", think_time="0.1")
    leaving = WorkloadSpec(input_tokens="6", output_tokens="500", cancel_fraction=1.0, cancel_after="0.3")
    long = WorkloadSpec(input_tokens="6", output_tokens="2000")

    def users(profile: str, pause: float = 0.0) -> Arrivals:
        return Arrivals(kind="users", profile=profile, pause=pause)

    def plan(address: str, workload: WorkloadSpec, arrivals: Arrivals) -> LoadPlan:
        return LoadPlan(server=address, workload=workload, arrivals=arrivals, seconds=SECONDS)

    return {
        # A busy machine may need longer for a number of sessions than the other loads take.
        "closed": (plan(grpc, SHORT, users("3")).model_copy(update={"sessions": 12, "seconds": 60.0}), 1),
        "alone": (plan(grpc, SHORT, OPEN), 1),
        "together": (plan(http, SHORT, OPEN), 2),
        "whole": (
            plan(http, SHORT, users("2")).model_copy(update={"mode": "unary", "sessions": 5, "seconds": 60.0}),
            1,
        ),
        "steps": (plan(http, SHORT, users("1/1s,3/2s,0", pause=0.05)).model_copy(update={"seconds": 4.0}), 1),
        "trace": (plan(grpc, WorkloadSpec(trace=str(trace)), Arrivals(kind="trace", speed=2.0)), 1),
        "turns": (plan(http, turns, users("2")).model_copy(update={"sessions": 4, "seconds": 60.0}), 2),
        "leaving": (plan(grpc, leaving, Arrivals(kind="rate", profile="6", process="constant")), 1),
        "unfinished": (plan(http, long, users("2")).model_copy(update={"drain_seconds": 0.3}), 1),
        "none": (plan(grpc, SHORT, users("0")).model_copy(update={"seconds": 0.5}), 1),
    }


@pytest.fixture(scope="module")
def made(paced_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadResult]:
    """All loads are made at the same time."""
    place = tmp_path_factory.mktemp("loads")
    wanted = plans(paced_server, place)
    directories = {name: RunDirectory.create(place / name) for name in wanted}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(
                running_generator(generator_command(directories[name], plan, workers), place / f"{name}.out")
            )
            for name, (plan, workers) in wanted.items()
        }
        codes = {name: process.wait(TIMEOUT) for name, process in processes.items()}

    def find(name: str) -> LoadResult:
        directory, said = directories[name], (place / f"{name}.out").read_text()
        assert codes[name] == 0, said
        return LoadResult(wanted[name][0], read_records(directory), directory.generator_samples(), said)

    return find


def test_a_closed_loop_has_as_many_on_their_way_as_users(made: Callable[[str], LoadResult]) -> None:
    run = made("closed")
    assert {record.outcome for record in run.records} == {RequestOutcome.COMPLETED}
    assert len(by_session(run.records)) == len(run.records) == 12
    assert most_at_once(run.records) == 3
    begun = sorted(record.sent for record in run.records)
    ends = sorted(record.ended for record in run.records)
    # Each user's next session begins when its last has ended, so that the number of those that run stays the same.
    assert all(after >= before for before, after in zip(ends, begun[3:], strict=False))
    assert all(0 <= record.due <= record.sent < run.plan.end for record in run.records)


def test_a_record_has_each_token_and_the_servers_counts(made: Callable[[str], LoadResult]) -> None:
    for record in made("closed").records + made("together").records:
        assert len(record.chunks) == record.output_tokens == record.max_tokens == TOKENS
        assert record.sent < record.chunks[0] <= record.chunks[-1] <= record.ended + ROUND
        assert record.chunks[-1] - record.sent >= (TOKENS - 1) * STEP_SECONDS
        assert record.input_tokens is not None
        assert record.input_tokens > 0
        assert (record.finish_reason, record.code, record.message) == ("length", "", "")


def test_an_open_loop_keeps_its_schedule(made: Callable[[str], LoadResult]) -> None:
    run = made("alone")
    moments = list(due_times(run.plan.arrivals, run.plan.seed, run.plan.end))
    found = sorted(run.records, key=lambda record: record.session)
    assert [record.session for record in found] == list(range(len(moments)))
    assert [record.due for record in found] == pytest.approx(moments, abs=ROUND)
    assert all(record.due <= record.sent + ROUND for record in found)


def test_two_workers_make_together_what_one_makes_alone(made: Callable[[str], LoadResult]) -> None:
    alone, together = made("alone").records, made("together").records

    def planned(records: list[RequestRecord]) -> list[tuple[int, int, float, int]]:
        return sorted((record.session, record.turn, record.due, record.max_tokens) for record in records)

    assert planned(together) == planned(alone)
    assert {(record.session % 2, record.worker) for record in together} == {(0, 0), (1, 1)}
    # The same prompts: the server counted the same tokens.
    counted = [{record.session: record.input_tokens for record in records} for records in (alone, together)]
    assert counted[0] == counted[1]


def test_whole_answers_have_no_chunks_and_no_more_sessions_than_asked(made: Callable[[str], LoadResult]) -> None:
    run = made("whole")
    assert sorted(record.session for record in run.records) == [0, 1, 2, 3, 4]
    for record in run.records:
        assert (record.outcome, record.chunks, record.output_tokens) == (RequestOutcome.COMPLETED, (), TOKENS)
        assert record.ended - record.sent >= TOKENS * STEP_SECONDS


def test_users_come_and_go_with_the_profile(made: Callable[[str], LoadResult]) -> None:
    records = made("steps").records
    first = [record for record in records if record.due < 1.0]
    later = [record for record in records if record.due >= 1.0]
    assert most_at_once(first) == 1
    assert most_at_once(later) > 1
    assert max(record.due for record in records) < 3
    assert all(after.due - before.ended >= 0.05 - ROUND for before, after in pairwise(first))


def test_a_trace_is_replayed_at_its_moments(made: Callable[[str], LoadResult]) -> None:
    records = sorted(made("trace").records, key=lambda record: record.session)
    assert [record.due for record in records] == pytest.approx([0.0, 0.5, 0.75])
    assert {record.outcome for record in records} == {RequestOutcome.COMPLETED}


def test_each_turn_is_due_after_the_answer_before_it(made: Callable[[str], LoadResult]) -> None:
    sessions = by_session(made("turns").records)
    assert len(sessions) >= 2
    whole = [turns for turns in sessions.values() if len(turns) == 3]
    assert whole
    for turns in sessions.values():
        assert [record.turn for record in turns] == list(range(len(turns)))
        assert len({record.worker for record in turns}) == 1
        for before, after in pairwise(turns):
            assert after.due == pytest.approx(before.ended + 0.1, abs=0.05)
            assert after.due >= before.ended
            assert (after.input_tokens or 0) > (before.input_tokens or 0) + 3  # it holds the answer too


def test_clients_leave_when_the_workload_says(made: Callable[[str], LoadResult]) -> None:
    records = made("leaving").records
    assert len(records) == 12
    for record in records:
        assert record.outcome is RequestOutcome.CANCELLED
        assert 0.3 <= record.ended - record.sent < 500 * STEP_SECONDS
        assert len(record.chunks) < 500
    assert any(record.chunks for record in records)


def test_what_is_open_behind_the_grace_is_unfinished(made: Callable[[str], LoadResult]) -> None:
    run = made("unfinished")
    assert len(run.records) == 2
    for record in run.records:
        assert (record.outcome, record.output_tokens) == (RequestOutcome.UNFINISHED, len(record.chunks))
        assert run.plan.end + 0.3 <= record.ended < 2000 * STEP_SECONDS
        assert record.chunks


def test_without_users_nothing_is_sent(made: Callable[[str], LoadResult]) -> None:
    assert made("none").records == []


@pytest.mark.parametrize("name", ["closed", "together", "unfinished"])
def test_processes_tell_how_they_stood(name: str, made: Callable[[str], LoadResult]) -> None:
    run = made(name)
    for worker in {record.worker for record in run.records}:
        told = [sample for sample in run.samples if sample["worker"] == worker]
        own = [record for record in run.records if record.worker == worker]
        assert len(told) >= 2
        assert told[-1]["sent"] == len(own)
        assert told[-1]["open"] == 0
        assert sum(told[-1]["outcomes"].values()) == len(own)  # type: ignore[attr-defined]
        assert all(float(str(sample["lag"])) >= 0 and float(str(sample["cpu"])) >= 0 for sample in told)


def most_at_once(records: list[RequestRecord]) -> int:
    """How many requests were on their way at the same time."""
    changes = sorted([(record.ended, -1) for record in records] + [(record.sent, 1) for record in records])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most

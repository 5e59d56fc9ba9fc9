from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Cost, Summary, Tokens
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import OPEN_LOOP, failure, read_records, record, steady_generator, write_run


def tokens_of(summary: Summary) -> Tokens:
    assert summary.tokens is not None
    return summary.tokens


def test_percentiles_are_those_of_all_records(tmp_path: Path) -> None:
    records = [record(i, i * 0.05, ttft=0.001 * (i + 1), gaps=(0.01, 0.03)) for i in range(100)]
    found = summarize(write_run(tmp_path / "run", records)).latencies
    ttft = found["ttft"]
    assert (ttft.count, ttft.min, ttft.max) == pytest.approx((100, 0.001, 0.1))
    # Linear between order statistics: rank 0.99 * 99 + 1 = 99.01 of 1, 2, ..., 100 ms.
    assert ttft.p50 == pytest.approx(0.0505)
    assert ttft.p99 == pytest.approx(0.09901)
    assert ttft.mean == pytest.approx(0.0505)
    assert found["itl"].count == 200
    assert (found["itl"].p50, found["itl"].p75) == pytest.approx((0.02, 0.03))
    assert found["tpot"].mean == pytest.approx(0.02)
    assert found["e2e"].max == pytest.approx(0.14)


def test_latency_counts_from_due_and_beside_it_from_sent(tmp_path: Path) -> None:
    found = summarize(write_run(tmp_path / "run", [record(0, 1.0, ttft=0.2, sent=1.5)])).latencies
    assert (found["ttft"].p50, found["ttft_sent"].p50) == pytest.approx((0.7, 0.2))
    assert (found["e2e"].p50, found["e2e_sent"].p50) == pytest.approx((0.71, 0.21))


def test_only_what_is_due_behind_the_warm_up_counts(tmp_path: Path) -> None:
    plan = LoadPlan(warmup=2, seconds=4)
    records = [record(i, due, ttft=due) for i, due in enumerate([0.0, 1.999, 2.0, 5.999, 6.0])]
    found = summarize(write_run(tmp_path / "run", records, plan))
    assert found.requests.due == 2
    assert found.latencies["ttft"].min == pytest.approx(2.0)
    assert found.latencies["ttft"].max == pytest.approx(5.999)
    assert found.offered_per_second == pytest.approx(0.5)


def test_tokens_a_second_are_those_that_came_in_the_measured_part_whoever_asked(tmp_path: Path) -> None:
    plan = LoadPlan(warmup=1, seconds=2)
    early = record(0, 0.5, ttft=0.3, gaps=(0.4, 0.4), output_tokens=6)  # at 0.8, 1.2, 1.6; two tokens each
    late = record(1, 2.9, ttft=0.05, gaps=(0.2,))  # at 2.95, 3.15
    whole = record(2, 1.0, chunks=(), ended=2.0, output_tokens=7)
    found = summarize(write_run(tmp_path / "run", [early, late, whole], plan))
    assert tokens_of(found).per_second == pytest.approx((4 + 1 + 7) / 2)
    assert (tokens_of(found).input, tokens_of(found).output) == (20, 9)
    assert tokens_of(found).per_response == 1.0
    assert found.completed_per_second == pytest.approx(1.0), "the early one and the whole one ended in it"


def test_responses_of_several_tokens_are_told(tmp_path: Path) -> None:
    found = summarize(write_run(tmp_path / "run", [record(0, 0, gaps=(0.04, 0.04), output_tokens=9)]))
    assert tokens_of(found).per_response == 3.0
    assert found.latencies["itl"].p50 == pytest.approx(0.04)
    assert found.latencies["tpot"].p50 == pytest.approx(0.01)


def test_empty_answers_are_counted_and_told(tmp_path: Path) -> None:
    empty = record(0, 0.0, chunks=(), ended=0.1, output_tokens=0, finish_reason="stop")
    whole = record(1, 0.0, chunks=(), ended=0.1, output_tokens=3)
    found = summarize(write_run(tmp_path / "run", [empty, whole, failure(2, 0.0, "overloaded")]))
    assert (found.requests.empty, found.requests.answered) == (1, 1)
    assert "1 of 2 answers are empty" in found.validity.notes[0]


def test_whole_answers_have_end_to_end_times_alone(tmp_path: Path) -> None:
    records = [record(i, i, chunks=(), ended=i + 0.5) for i in range(5)]
    found = summarize(
        write_run(tmp_path / "run", records, LoadPlan(seconds=10, slo=("p50 ttft <= 1s", "p50 e2e <= 1s")))
    )
    assert set(found.latencies) == {"e2e", "e2e_sent"}
    assert [bound.met for bound in found.slo] == [False, True]
    assert found.slo[0].value is None
    assert "nothing was measured" in found.slo[0].note


def test_cancelled_requests_count_as_far_as_they_came_and_failed_ones_do_not(tmp_path: Path) -> None:
    records = [
        record(0, 0, ttft=0.1, gaps=(0.01,)),
        record(1, 0, ttft=0.3, gaps=(0.05, 0.05), outcome=RequestOutcome.CANCELLED, ended=9.0),
        record(2, 0, ttft=5.0, gaps=(3.0,), outcome=RequestOutcome.FAILED, code="engine_died"),
    ]
    found = summarize(write_run(tmp_path / "run", records)).latencies
    assert (found["ttft"].count, found["ttft"].max) == pytest.approx((2, 0.3))
    assert (found["itl"].count, found["itl"].max) == pytest.approx((3, 0.05))
    assert (found["e2e"].count, found["tpot"].count) == (1, 1)


def test_outcomes_and_errors_by_their_codes(tmp_path: Path) -> None:
    records = [
        record(0, 0),
        *(failure(i, 0.1 * i, "overloaded", RequestOutcome.REJECTED) for i in range(1, 4)),
        failure(4, 0.5, "deadline_exceeded", RequestOutcome.TIMED_OUT),
        failure(5, 0.6, "engine_died"),
        failure(6, 0.7, "", RequestOutcome.UNFINISHED),
        failure(7, 0.8, "", RequestOutcome.CANCELLED),
    ]
    found = summarize(write_run(tmp_path / "run", records)).requests
    assert (found.due, found.completed, found.rejected, found.timed_out, found.failed) == (8, 1, 3, 1, 1)
    assert (found.unfinished, found.cancelled) == (1, 1)
    assert list(found.errors.items()) == [("overloaded", 3), ("deadline_exceeded", 1), ("engine_died", 1)]
    assert found.messages["overloaded"] == "it is overloaded"
    assert found.error_rate == pytest.approx(6 / 7)


@pytest.mark.parametrize(
    "records", [[], [failure(i, i, "server_unreachable") for i in range(3)]], ids=["none", "failed"]
)
def test_a_run_without_any_answer_has_figures_too(tmp_path: Path, records: list[RequestRecord]) -> None:
    plan = LoadPlan(seconds=10, slo=("p99 ttft <= 1s", "error_rate <= 1%"), price_per_hour=2)
    found = summarize(write_run(tmp_path / "run", records, plan))
    assert (found.requests.due, found.requests.completed) == (len(records), 0)
    assert found.latencies == {}
    assert not any(bound.met for bound in found.slo)
    assert found.goodput is not None
    assert (found.goodput.good, found.goodput.of_sent, found.goodput.of_completed) == (0, 0, 0)
    assert isinstance(found.cost, Cost)
    assert found.cost.per_million_output is None
    assert tokens_of(found).per_second == 0


def test_a_run_whose_sessions_were_all_made_ends_with_the_last_answer(tmp_path: Path) -> None:
    records = [record(i, i, ttft=0.5, gaps=(0.5,)) for i in range(4)]
    found = summarize(
        write_run(tmp_path / "run", records, LoadPlan(seconds=60, sessions=4), generator=steady_generator(4, 4))
    )
    assert found.measured_seconds == pytest.approx(4.0)
    assert found.completed_per_second == pytest.approx(1.0)
    assert tokens_of(found).per_second == pytest.approx(2.0)
    assert found.validity.reasons == ()


def test_a_run_that_was_killed_counts_as_far_as_it_came(tmp_path: Path) -> None:
    plan = LoadPlan(seconds=60, arrivals=OPEN_LOOP)
    directory = write_run(
        tmp_path / "run", [record(i, float(i)) for i in range(20)], plan, generator=steady_generator(20, 20)
    )
    with directory.requests.open("a") as file:
        file.write(record(20, 20.0).to_json()[:40])
    found = summarize(directory)
    assert (found.measured_seconds, found.requests.due) == pytest.approx((20.0, 20))
    assert any("ended 40 s early" in reason for reason in found.validity.reasons)
    assert len(found.validity.reasons) == 1, "all sessions that were due by then were begun"


DAMAGES = {
    "no JSON": "{]\n",
    "no object": "[1, 2]\n",
    "an unknown field": json.dumps({**json.loads(record(0, 0).to_json()), "colour": "red"}) + "\n",
    "no due": json.dumps({k: v for k, v in json.loads(record(0, 0).to_json()).items() if k != "due"}) + "\n",
    "an unknown outcome": record(0, 0).to_json().replace("completed", "perfect") + "\n",
    "a text as a moment": record(0, 0).to_json().replace('"due":0', '"due":"noon"') + "\n",
    "not a number": record(0, 0).to_json().replace('"due":0', '"due":NaN') + "\n",
    "an endless end": record(0, 0).to_json().replace('"ended":0.11', '"ended":1e300') + "\n",
    "responses out of order": record(0, 0, gaps=(-0.05,)).to_json() + "\n",
    "a text as responses": record(0, 0).to_json().replace("[0.1,0.11]", '"soon"') + "\n",
    "a number of 400 digits": record(0, 0).to_json().replace('"max_tokens":8', '"max_tokens":' + "9" * 400) + "\n",
    "nested deeply": "[" * 100_000 + "]" * 100_000 + "\n",
    "no UTF-8": "",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    directory = write_run(tmp_path / "run", [record(0, 0)])
    line = DAMAGES[damage].encode() or b"\xff\xfe{}\n"
    assert line not in (b"", record(0, 0).to_json().encode() + b"\n")
    directory.requests.write_bytes(line + b"\n" + directory.requests.read_bytes())
    with raises(LoadError, "run_damaged", naming="requests.jsonl"):
        summarize(directory)


DEEP = '{"t":' + "[" * 100_000 + "]" * 100_000 + "}"
HUGE = "9" * 400


@pytest.mark.parametrize("name", ["server.jsonl", "generator.jsonl"])
@pytest.mark.parametrize(
    "line",
    [
        *("{}", "[]", '{"t": "x", "worker": 0, "cpu": 1, "lag": 1}', DEEP),
        *(
            f'{{"t": {t}, "worker": 0, "cpu": 1, "lag": {lag}, "moment": "during", "values": {{"a": {lag}}}}}'
            for t, lag in [("NaN", 0), ("1e999", 0), (1, "Infinity"), (1, "-1e999"), (HUGE, 0), (1, HUGE)]
        ),
    ],
)
def test_a_damaged_sample_is_named(tmp_path: Path, name: str, line: str) -> None:
    directory = write_run(tmp_path / "run", [record(0, 0)])
    (directory.path / name).write_text(line + "\n")
    with raises(LoadError, "run_damaged", naming=name):
        summarize(directory)


@pytest.mark.parametrize("name", ["metadata.json", "plan.json"])
@pytest.mark.parametrize(
    "text", ['{"seconds": NaN}', '{"seconds": 1e999}', "[]", DEEP, '{"a":' * 400 + "1" + "}" * 400, "{", "9" * 5000]
)
def test_damaged_facts_and_plans_are_named(tmp_path: Path, name: str, text: str) -> None:
    directory = write_run(tmp_path / "run", [record(0, 0)])
    (directory.path / name).write_text(text)
    with raises(LoadError, "run_damaged", naming=name) as caught:
        summarize(directory)
    assert len(str(caught.value)) < 1000


def test_percentile_curves_reach_no_further_than_there_are_requests(tmp_path: Path) -> None:
    records = [record(i, i * 0.1, ttft=0.001 * i, gaps=()) for i in range(50)]
    curve = summarize(write_run(tmp_path / "run", records)).curves["ttft"]
    levels = [level for level, _ in curve]
    assert levels == sorted(levels)
    assert (levels[0], levels[-2], levels[-1]) == (0, 98, 100)
    assert curve[-1][1] == pytest.approx(0.049)


def test_steps_of_the_load_have_figures_of_their_own(tmp_path: Path) -> None:
    plan = LoadPlan(warmup=2, seconds=18, arrivals=OPEN_LOOP.model_copy(update={"profile": "1/10s,2"}))
    dues = [*range(10), *(10 + 0.5 * i for i in range(20))]
    records = [record(i, due, ttft=0.1 if due < 10 else 0.4) for i, due in enumerate(dues)]
    first, second = summarize(write_run(tmp_path / "run", records, plan)).load_phases
    assert (first.start, first.end, second.end) == (2, 10, 20)
    assert (first.offered_per_second, second.offered_per_second) == pytest.approx((1, 2))
    assert (first.latencies["ttft"].p50, second.latencies["ttft"].p99) == pytest.approx((0.1, 0.4))


REQUESTS = st.builds(
    lambda due, ttft, gaps, outcome, turn: {"due": due, "ttft": ttft, "gaps": gaps, "outcome": outcome, "turn": turn},
    st.floats(0, 12),
    st.floats(0, 3),
    st.lists(st.floats(0, 1), max_size=5),
    st.sampled_from(RequestOutcome),
    st.integers(0, 3),
)


@settings(max_examples=40, deadline=None)
@given(made=st.lists(REQUESTS, max_size=30), seed=st.integers(0, 99))
def test_what_must_hold_of_any_run(tmp_path_factory: pytest.TempPathFactory, made: list[dict], seed: int) -> None:  # type: ignore[type-arg]
    records = [record(i, **values, worker=i % 3) for i, values in enumerate(made)]
    plan = LoadPlan(warmup=1, seconds=9, slo=("p50 e2e <= 1s",))
    run = write_run(tmp_path_factory.mktemp("run") / "a", records, plan)
    found = summarize(run)
    counts = found.requests
    part = [one for one in read_records(run) if 1 <= one.due < 10]
    assert counts.due == len(part) == sum(getattr(counts, outcome.value) for outcome in RequestOutcome)
    seen = [one for one in part if one.outcome in (RequestOutcome.COMPLETED, RequestOutcome.CANCELLED)]
    raw = [one.chunks[0] - one.due for one in seen]
    gaps = [gap for one in seen for gap in np.diff(one.chunks).tolist()]
    for name, values in (("ttft", raw), ("itl", gaps)):
        if values:
            spread = found.latencies[name]
            assert (spread.p50, spread.p99) == pytest.approx(np.percentile(values, [50, 99]).tolist(), abs=1e-9)
            assert spread.mean == pytest.approx(float(np.mean(values)), abs=1e-9)
        else:
            assert name not in found.latencies
    assert found.goodput is not None
    assert 0 <= found.goodput.good <= counts.completed
    shuffled = random.Random(seed).sample(records, len(records))
    assert summarize(write_run(tmp_path_factory.mktemp("run") / "b", shuffled, plan)) == found


def test_how_long_prompts_were_is_set_against_what_was_asked_for(tmp_path: Path) -> None:
    """A word without a tokenizer is a token, and the server's may count three: of conversations, of first turns."""
    asked = WorkloadSpec(input_tokens="uniform:100,156", prefix_tokens=20)
    records = [record(i, i / 10, input_tokens=440 + i % 2, turn=0) for i in range(50)]
    records += [record(i, i / 10 + 0.05, input_tokens=900, turn=1) for i in range(50)]
    tokens = tokens_of(summarize(write_run(tmp_path / "run", records, LoadPlan(seconds=10, workload=asked))))
    assert (tokens.input_per_request, tokens.first_input) == (670.25, 440.5)
    assert tokens.first_input_requested == pytest.approx(148, abs=10)
    told = LoadPlan(seconds=10, workload=WorkloadSpec(prompts="sample:prompts"))
    tokens = tokens_of(summarize(write_run(tmp_path / "file", records, told)))
    assert (tokens.first_input, tokens.first_input_requested) == (None, None)

"""Gaps between tokens that came several at once are judged by what they may have been without that."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.analysis.comparison.compare import compare
from loadtests.analysis.comparison.result import ChangeVerdict
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.plan import LoadPlan
from loadtests.run_directory import RunDirectory
from tests.fixtures.load_runs import record, server_sample, write_run

AT_ONCE = 0.00003
STEP = 0.003
"""Seconds that the server takes for a token."""
SERVER = "inflight_inter_token_latency_seconds"


def made(path: Path, together: int, slo: tuple[str, ...] = (), answers: int = 300, slower: float = 1) -> RunDirectory:
    """Answers of 40 tokens, made a step apart, that come so many at a time."""
    bunch = [AT_ONCE] * (together - 1)
    gaps = [*bunch, *([together * slower * STEP - AT_ONCE * (together - 1), *bunch] * (40 // together - 1))]
    records = [record(i, 0.02 * i, gaps=gaps, output_tokens=40) for i in range(300)]
    pages = [{f"{SERVER}_sum": STEP * 100 * t, f"{SERVER}_count": 100.0 * t} for t in (1, 2)]
    server = [server_sample(0, "before", **pages[0]), server_sample(9, "after", **pages[1])]
    return write_run(path, records, LoadPlan(seconds=10, slo=slo), server)


def summary(path: Path, together: int, *slo: str) -> Summary:
    return summarize(made(path, together, slo))


@pytest.mark.parametrize(
    ("together", "verdicts"),
    [(1, "missed met missed missed met missed"), (10, "not not not not met not"), (2, "not met not not met not")],
)
def test_a_bound_is_kept_only_if_it_would_be_without_bunches(tmp_path: Path, together: int, verdicts: str) -> None:
    """Tokens a step of 3 ms apart: by tens they seem faster, by twos `p90 itl` is the pause of 6 ms that it is."""
    slo = ("p50 itl <= 1ms", "p90 itl <= 7ms", "mean itl <= 2.95ms", "p50 tpot <= 2.95ms", "p99 tpot <= 4ms")
    bounds = summary(tmp_path / "run", together, *slo, "max tpot < 2.99ms").slo
    assert [bound.verdict.split()[0] for bound in bounds] == verdicts.split()


def test_bunches_are_told_with_the_pauses_between_them(tmp_path: Path) -> None:
    assert summary(tmp_path / "one", 1).validity.notes == ()
    share, server = summary(tmp_path / "ten", 10).validity.notes
    assert "92% of the gaps between responses were below 0.2 ms" in share
    assert "29.7 ms (p50)" in share
    assert "ITL is 0.0 ms (p90) here and 3.0 ms on average in the server" in server
    (share,) = summary(tmp_path / "two", 2).validity.notes
    assert "51% of the gaps" in share


def test_an_answer_that_came_all_at_once_keeps_no_bound(tmp_path: Path) -> None:
    slo = ("p50 itl <= 1s", "mean itl <= 1s", "p50 tpot <= 1s")
    bounds = summary(tmp_path / "run", 40, *slo).slo
    assert [bound.verdict for bound in bounds] == ["not evaluated"] * 3


def test_gaps_of_runs_with_other_bunches_are_not_compared(tmp_path: Path) -> None:
    one, ten, slow = made(tmp_path / "a", 1), made(tmp_path / "b", 10), made(tmp_path / "c", 10, slower=2)
    found = {change.metric: change.verdict for change in compare([one], [ten]).changes}
    assert {found[f"{level} {name}"] for level in ("p50", "p99") for name in ("itl", "tpot")} == {ChangeVerdict.BUNCHED}
    alike = {change.metric: change for change in compare([ten], [slow]).changes}
    assert alike["p50 itl"].verdict is ChangeVerdict.BUNCHED
    assert alike["p50 tpot"].verdict is not ChangeVerdict.BUNCHED

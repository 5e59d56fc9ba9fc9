from __future__ import annotations

from pathlib import Path

import pytest

from inflight.deploy.errors import DeployError
from inflight.tune.engine_alone import GreedyAnswers
from inflight.tune.results import GAP, ProcessorTimes, ServedTrial, TrialRecords, TuneResult, compare_answers
from inflight.tune.settings import EngineBuild, Settings
from tests.fixtures.errors import raises

BUILD = EngineBuild("int8", "u8")
REFERENCE = GreedyAnswers([[1, 2, 3, 4], [5, 6]], [[-1.0, -1.0, -1.0, -1.0], [-2.0, -2.0]])


def test_equal_answers_differ_in_nothing() -> None:
    quality = compare_answers(BUILD, REFERENCE, REFERENCE)
    assert [*quality.figures.values()] == [1.0, 3.0, 0.0]


def test_a_gap_is_of_the_tokens_before_the_first_other_one() -> None:
    ours = GreedyAnswers([[1, 2, 9, 4], [7, 6]], [[-1.5, -1.0, -9.0, -9.0], [-9.0, -9.0]])
    quality = compare_answers(BUILD, ours, REFERENCE)
    assert [*quality.figures.values()] == [4 / 6, 1.0, 0.25]


def test_without_an_equal_beginning_there_is_no_gap() -> None:
    ours = GreedyAnswers([[9, 9, 9, 9], [9, 9]], REFERENCE.log_probs)
    assert compare_answers(BUILD, ours, REFERENCE).figures[GAP] is None


def test_trials_are_kept_and_one_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    records = TrialRecords(tmp_path / "out", {"users": 4})
    records.add("alone", BUILD, "6 s", value={"speed": 1.5})
    with (tmp_path / "out" / "trials.jsonl").open("a") as file:
        file.write('{"trial": "served | x", "spe')
    again = TrialRecords(tmp_path / "out", {"users": 4})
    assert again.get("alone", BUILD, "6 s") == {"speed": 1.5}
    assert again.get("served", "x") is None
    again.add("served", "x", value={"speed": 2.5})
    last = TrialRecords(tmp_path / "out", {"users": 4})
    assert last.get("served", "x") == {"speed": 2.5}
    assert last.seconds > again.seconds - records.seconds > 0


@pytest.mark.parametrize("content", ['{"users": 5}', "{", ""])
def test_a_run_with_other_options_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with raises(DeployError, "output_exists", naming=str(tmp_path)):
        TrialRecords(tmp_path, {"users": 4})


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with raises(DeployError, "output_exists", naming=str(tmp_path)):
        TrialRecords(tmp_path, {"users": 4})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def _served(tokens: int, *speeds: float, foreign: float = 0.0) -> ServedTrial:
    runs = [
        ServedTrial(Settings(BUILD, tokens), speed, 1.0, {}, {}, 9, 0, speed > 8, {}, "runs/x", foreign)
        for speed in speeds
    ]
    return ServedTrial.combined(runs)


def test_runs_of_the_same_settings_are_one_trial() -> None:
    trial = _served(96, 9.0, 7.0, 11.0)
    assert (trial.tokens_per_second, trial.speeds, trial.meets_slo) == (9.0, (9.0, 7.0, 11.0), False)
    assert _served(96, 9.0, 10.0).meets_slo is True


@pytest.mark.parametrize(
    ("other", "foreign", "notes"),
    [((10.0, 12.0), 0.0, 2), ((10.0, 21.0), 0.0, 3), ((10.0, 12.0), 0.3, 3)],
    ids=["clear", "overlap", "busy"],
)
def test_a_doubtful_winner_is_told(other: tuple[float, float], foreign: float, notes: int) -> None:
    best = _served(96, 20.0, 22.0)
    result = TuneResult([], [best, _served(256, *other, foreign=foreign)], [], best, "engine", 1.0)
    assert len(result.notes()) == notes
    assert result.notes()[0].startswith(f"{best.settings}: 20.0 to 22.0 ")


def test_the_share_of_other_programs_is_of_all_cores() -> None:
    before = ProcessorTimes(100.0, 50.0, 10.0)
    assert ProcessorTimes(110.0, 65.0, 20.0).foreign_share(before, 2) == pytest.approx(0.25)
    assert ProcessorTimes(110.0, 60.0, 20.5).foreign_share(before, 2) == 0.0
    now = ProcessorTimes.now()
    assert 0 < now.own < now.machine

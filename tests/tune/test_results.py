from __future__ import annotations

from pathlib import Path

import pytest

from inflight.deploy.errors import DeployError
from inflight.tune.engine_alone import GreedyAnswers
from inflight.tune.results import TrialRecords, compare_answers
from inflight.tune.settings import EngineBuild
from tests.fixtures.errors import raises

BUILD = EngineBuild("int8", "u8")
REFERENCE = GreedyAnswers([[1, 2, 3, 4], [5, 6]], [[-1.0, -1.0, -1.0, -1.0], [-2.0, -2.0]])


def test_equal_answers_differ_in_nothing() -> None:
    quality = compare_answers(BUILD, REFERENCE, REFERENCE)
    assert (quality.equal_tokens, quality.equal_beginning, quality.log_prob_gap) == (1.0, 3.0, 0.0)


def test_a_gap_is_of_the_tokens_before_the_first_other_one() -> None:
    ours = GreedyAnswers([[1, 2, 9, 4], [7, 6]], [[-1.5, -1.0, -9.0, -9.0], [-9.0, -9.0]])
    quality = compare_answers(BUILD, ours, REFERENCE)
    assert (quality.equal_tokens, quality.equal_beginning, quality.log_prob_gap) == (4 / 6, 1.0, 0.25)


def test_without_an_equal_beginning_there_is_no_gap() -> None:
    ours = GreedyAnswers([[9, 9, 9, 9], [9, 9]], REFERENCE.log_probs)
    assert compare_answers(BUILD, ours, REFERENCE).log_prob_gap is None


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

"""How a running job looks on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from inflight.batch.job.counts import Counts
from inflight.batch.reporting import formatting
from inflight.batch.reporting.display import LineDisplay, LiveDisplay, job_display
from inflight.batch.reporting.progress import JobProgress, JobState
from inflight.batch.reporting.throughput import Throughput
from tests.batch.reporting.sample_progress import sample_counts, sample_progress

HALF = (
    "running; 5,000 of 10,000 rows (50.0%), 1,234 tokens/s, 10 rows/s, ETA 8 min 20 s, 12 retries, 3 dead letters,"
    " failed: prompt_too_long 7, row_invalid 3, cost 2.50"
)


def bar(progress: JobProgress) -> str:
    shown = LiveDisplay("answers")
    assert "answers: opening the job" in printed(shown)
    shown.update(progress)
    return printed(shown)


def printed(shown: LiveDisplay) -> str:
    output = io.StringIO()
    Console(file=output, width=160).print(shown.rendered())
    return output.getvalue()


def test_a_pipe_hears_at_the_beginning_each_minute_at_changes_and_at_the_end() -> None:
    now, lines_shown = [0.0], list[str]()
    lines = LineDisplay("answers", clock=lambda: now[0], on_message=lines_shown.append)
    for second in range(121):
        now[0] = float(second)
        lines(sample_progress())
    assert lines_shown == [f"answers: {HALF}"] * 3
    lines(sample_progress(JobState.WAITING))
    lines(sample_progress(JobState.WAITING))
    lines(sample_progress(JobState.FAILED, message="the table is gone"))
    assert [line.split(";")[0] for line in lines_shown[3:]] == [
        "answers: waiting for a server",
        "answers: failed",
    ]
    assert "ETA" not in lines_shown[-1]


def test_off_a_terminal_the_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with job_display("answers") as screen:
        screen.on_progress(sample_progress())
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"answers: {HALF}\n"


def test_the_bar_has_rows_speed_eta_cost_and_what_went_wrong() -> None:
    shown = bar(sample_progress())
    assert "answers" in shown
    assert "opening" not in shown
    assert "5,000 of 10,000 rows (50.0%) ETA 8 min 20 s" in shown
    assert (
        "1,234 tokens/s, 10 rows/s, 48 in flight (limit 64), 2 waiting for a retry, 1 of 2 servers up, cost 2.50"
        in shown
    )
    assert "12 retries, 3 dead letters, failed: prompt_too_long 7, row_invalid 3" in shown
    quiet = bar(
        sample_progress(counts=Counts(ok=1), cost=None, total=None, input_fraction=None, throughput=Throughput())
    )
    assert "retries" not in quiet
    assert "cost" not in quiet
    assert "1 row ETA unknown" in quiet


def test_the_bar_says_how_it_stopped_and_leaves_the_reason_to_the_last_line() -> None:
    shown = bar(sample_progress(JobState.STOPPED, message="no server answered for 1800 s"))
    assert "■ answers stopped" in shown
    assert "no server answered for 1800 s" not in shown
    assert "in flight" not in shown


def test_on_a_terminal_the_last_moment_stays() -> None:
    output = io.StringIO()
    with job_display("answers", Console(file=output, force_terminal=True, width=120)) as screen:
        screen.on_progress(sample_progress())
        screen.on_message("Finishing what is in flight.")
        screen.on_progress(sample_progress(JobState.FINISHED, counts=sample_counts(ok=9990)))
    above, _, last = output.getvalue().rpartition("answers")
    assert "Finishing what is in flight.\n" in above
    assert "10,000 of 10,000 rows (100.0%)" in last


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.42, "0.4 s"), (42.4, "42 s"), (59.6, "1 min 00 s"),
     (3599.7, "1 h 00 min"), (11220, "3 h 07 min"), (187200, "2 d 04 h")],
)  # fmt: skip
def test_times_in_words(seconds: float, text: str) -> None:
    assert formatting.format_duration(seconds) == text


def test_a_hundred_percent_is_not_said_before_the_last_row() -> None:
    assert "(99.9%)" in formatting.format_rows(sample_progress(counts=Counts(ok=9999)))


@pytest.mark.parametrize(
    ("sum_", "text"), [(1234.5, "1,234.50"), (0.25, "0.250"), (0.0000468, "0.0000468"), (0.0, "0.00")]
)
def test_money(sum_: float, text: str) -> None:
    assert formatting.format_money(sum_) == text

"""What a finished job leaves: a manifest that a program can check, and a summary that a manager can read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.manifest import JobManifest
from inflight.batch.reporting.progress import JobProgress
from inflight.batch.reporting.summary import format_summary
from inflight.batch.runner import JobRunner
from tests.batch.sample_jobs import job_of, run
from tests.batch.scripted_backend import ScriptedBackend, echo

PROMPTS = ("tea", "so long", "{", "milk", "slow", "sugar")


def manifest_of(directory: JobDirectory) -> JobManifest:
    return JobManifest.model_validate_json(directory.manifest.read_bytes())


def test_the_manifest_tells_what_came_of_the_job_and_its_files(tmp_path: Path) -> None:
    directory, end = run(job_of(tmp_path, PROMPTS, price_per_hour=3600))
    assert end.exit_code == 3
    manifest = manifest_of(directory)
    rows = manifest.rows
    assert (rows.input, rows.ok, rows.error, rows.dead) == (6, 3, 2, 1)
    assert rows.codes == {"prompt_too_long": 1, "deadline_exceeded": 1, "row_invalid": 1}
    assert (manifest.input_tokens, manifest.output_tokens) == (3, 3)
    assert manifest.times.started <= manifest.times.ended
    assert manifest.times.runs == 1
    assert manifest.cost is not None
    assert abs(manifest.cost.spent - manifest.times.seconds) < 0.01, "an hour costs 3600"
    assert manifest.fingerprints.model == "one"
    assert all(
        (manifest.fingerprints.input, manifest.fingerprints.binding, manifest.versions["inflight"], manifest.host)
    )
    assert manifest.servers == ("gpu1:8001",)
    assert all(Path(address).is_absolute() for address in manifest.outputs)
    assert {file.kind for file in manifest.files} == {"ok", "error", "dead"}
    for file in manifest.files:
        content = Path(file.path).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_no_secret_and_no_prompt_stands_in_either(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("a word of silence", "so long"), headers={"authorization": "Bearer geheim"})
    job = job.model_copy(
        update={"run_options": job.run_options.model_copy(update={"servers": ("http://me:geheim@gpu1",)})}
    )
    directory, _ = run(job)
    reports = directory.manifest.read_text() + directory.summary.read_text()
    assert "http://me:***@gpu1" in reports
    assert "geheim" not in reports
    assert "silence" not in reports


def test_the_summary_says_why_rows_failed_and_what_to_do(tmp_path: Path) -> None:
    directory, _ = run(job_of(tmp_path, PROMPTS, price_per_hour=2.5))
    summary = directory.summary.read_text()
    assert summary.startswith("Batch job answers: finished, 3 of 6 rows have no answer.\n")
    assert "  3 answered (50.0%)\n" in summary
    assert "  1 row: the prompt and the answer together exceed the engine's limit [prompt_too_long]\n" in summary
    assert f"    inflight batch retry {directory.path} --only deadline_exceeded\n" in summary
    assert f"fix the cause and run: inflight batch retry {directory.path}\n" in summary
    assert "Cost\n" in summary
    assert f"  answers: {tmp_path / 'answers.jsonl'}\n  errors: {tmp_path / 'answers.errors.jsonl'}\n" in summary
    assert f"  dead letters: {tmp_path / 'answers.dead.jsonl'}\n" in summary


def test_the_command_of_the_summary_does_what_it_says(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("tea", "slow", "so long"))
    directory, _ = run(job)
    assert "--only deadline_exceeded" in directory.summary.read_text()
    seen: list[JobProgress] = []
    JobRunner(job, directory, on_progress=seen.append, backends=[ScriptedBackend(echo)]).run(
        retry_codes=["deadline_exceeded"]
    )
    assert (seen[0].rows_done, seen[0].retries_left, seen[-1].rows_done, seen[-1].retries_left) == (2, 1, 3, 0)
    rows = manifest_of(directory).rows
    assert (rows.ok, rows.codes) == (2, {"prompt_too_long": 1})
    summary = directory.summary.read_text()
    assert "1 of 3 rows has no answer" in summary
    assert "--only" not in summary
    assert "in 2 runs" in summary


def test_a_summary_of_a_job_where_all_went_well_is_short(tmp_path: Path) -> None:
    directory, end = run(job_of(tmp_path, ("tea", "milk")))
    assert end.exit_code == 0
    summary = directory.summary.read_text()
    assert summary.startswith("Batch job answers: finished, every row is answered.\n")
    assert "What failed" not in summary
    assert "Cost" not in summary
    assert "errors:" not in summary
    assert "output:" not in summary, "it is the file of the answers"


def test_paths_and_notes_are_told_as_a_shell_and_a_person_take_them(tmp_path: Path) -> None:
    folder = tmp_path / "my jobs"
    folder.mkdir()
    directory, _ = run(job_of(folder, ("slow",)))
    manifest = manifest_of(directory).model_copy(
        update={"notes": ("3 answers have no row any more.",), "outputs": ("s3://b/k",)}
    )
    summary = format_summary(manifest)
    assert f"inflight batch retry '{directory.path}' --only" in summary
    assert "  output: s3://b/k\n" in summary
    assert "  3 answers have no row any more.\n" in summary

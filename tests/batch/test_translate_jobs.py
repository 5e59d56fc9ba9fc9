"""Jobs that translate texts, by a real Triton whose model says what it was sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import EncodeSpec
from inflight.batch.verify.checker import verify
from inflight.commands.batch.run import command
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_encoder import expected_translation


def test_each_row_has_its_translation(scripted_encoders: EncoderServer, tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"text {n}"} for n in range(40)]
    rows[7] |= {"target_language": "fr", "source_language": "it"}
    rows[8]["text"] = "fail prompt_too_long"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = (
        "--task",
        "text2text",
        "--id",
        "id",
        "--target-language",
        "de",
        "--beam-width",
        "32",
        "--max-tokens",
        "9",
    )
    address = ("--server", scripted_encoders.grpc_address, "--priority", "0")
    done = CliRunner().invoke(
        command, [str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out.jsonl"), *options, *address]
    )
    assert done.exit_code == 3, done.output
    assert verify(JobDirectory.find(tmp_path / "out.jsonl")).complete
    found = {line["id"]: line for line in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert found.keys() == set(range(40)) - {8}
    for n, line in found.items():
        languages = {"target_prefix": "fr", "source_language": "it"} if n == 7 else {"target_prefix": "de"}
        wanted = expected_translation(f"text {n}", **languages, beam_width=32.0, max_tokens=9.0)
        counts = {"finish_reason": "stop", "output_tokens": len(wanted.split()), "input_tokens": 2, "truncated": False}
        assert line == {"id": n, "text": wanted, **counts}


def test_a_job_that_names_no_source_language_binds_none_as_before_there_was_one() -> None:
    bound = EncodeSpec(task="text2text", target_language="de").binding()
    assert "source_language" not in bound
    named = EncodeSpec(task="text2text", target_language="de", source_language="fr").binding()
    assert named == {**bound, "source_language": "fr"}


@pytest.mark.parametrize("options", [("--language", "en"), ("--temperature", "1"), ("--beam-width", "33")])
def test_options_of_other_tasks_are_refused(options: tuple[str, str], tmp_path: Path) -> None:
    arguments = ["rows.jsonl", "--out", str(tmp_path / "out.jsonl"), "--task", "text2text", *options]
    assert CliRunner().invoke(command, arguments).exit_code == 2

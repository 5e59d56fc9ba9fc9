from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from build_engines.checkpoints.checkpoint import read_checkpoint
from inflight.cli import cli, main


def test_synthetic_writes_a_checkpoint_that_can_be_built(tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    done = CliRunner().invoke(cli, ["checkpoint", "synthetic", "--like", "tiny-phi3", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert f"inflight build {out} --out ENGINE_DIR" in done.stdout
    assert read_checkpoint(out).architecture == "Phi3ForCausalLM"


def test_it_replaces_its_own_checkpoint_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tiny"
    arguments = ["checkpoint", "synthetic", "--like", "tiny-gpt2", "--out", str(out)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    # The same files without our mark may be a checkpoint that took hours to fetch.
    (out / ".inflight-checkpoint").unlink()
    with pytest.raises(SystemExit):
        main(arguments)
    assert "[output_exists]" in capsys.readouterr().err
    assert read_checkpoint(out).architecture == "GPT2LMHeadModel"


def test_an_unknown_shape_is_wrong_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["checkpoint", "synthetic", "--like", "gpt-9", "--out", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert "'gpt-9' is not one of 'qwen2.5-0.5b'" in done.stderr
    assert list(tmp_path.iterdir()) == []

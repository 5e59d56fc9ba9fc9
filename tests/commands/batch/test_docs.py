"""The commands of docs/batch.md do what the page says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from tests.fixtures.scripts import ROOT, script


@pytest.mark.slow
def test_every_console_block_of_the_page_runs(server: Server, tmp_path: Path) -> None:
    lines = script((ROOT / "docs/batch.md").read_text(encoding="utf-8"))
    assert lines
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "INFLIGHT_BATCH_RUN_SERVER": f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics",
    }
    run = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert '{"id":"q1"' in run.stdout
    assert "state    finished: its summary is answers.job/summary.txt\n" in run.stdout
    assert "6 rows = 6 ok + 0 error + 0 dead: every row exactly once.\n" in run.stdout
    assert "Batch job answers: finished, every row is answered.\n" in run.stdout
    assert "answers: finished; 6 of 6 rows (100.0%)" in run.stderr

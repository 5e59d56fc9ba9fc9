"""Every command of the quickstart's console blocks runs, in its order, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from inflight.deploy.server.ports import ListenPorts
from tests.fixtures.ports import free_port
from tests.fixtures.scripts import ROOT, script


def test_every_console_block_of_the_quickstart_runs(tmp_path: Path) -> None:
    for attempt in range(3):
        run = run_blocks(tmp_path / str(attempt))
        if "[port_in_use]" not in run.stderr:  # another program took a port while the engine was built
            break
    assert run.returncode == 0, run.stdout + run.stderr
    assert '"finish_reason"' in run.stdout
    assert "\nready " in run.stdout
    assert '"object":"text_completion"' in run.stdout
    assert '"object":"embedding"' in run.stdout
    assert (tmp_path / str(attempt) / "my-first-run/report.html").is_file()
    assert (tmp_path / str(attempt) / "answers.jsonl").read_text().count("\n") == 1


def run_blocks(place: Path) -> subprocess.CompletedProcess[str]:
    place.mkdir()
    lines = script((ROOT / "docs/quickstart.md").read_text(encoding="utf-8"))
    assert lines
    chosen, gateway = ListenPorts(free_port(), free_port(), free_port()), free_port()
    lines = [line.replace("127.0.0.1:8080", f"127.0.0.1:{gateway}") for line in lines]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "INFLIGHT_SERVE_GATEWAY": "1",
        "INFLIGHT_SERVE_PORT": str(gateway),
        "INFLIGHT_SERVE_HTTP_PORT": str(chosen.http),
        "INFLIGHT_SERVE_GRPC_PORT": str(chosen.grpc),
        "INFLIGHT_SERVE_METRICS_PORT": str(chosen.metrics),
        "INFLIGHT_BATCH_RUN_SERVER": f"127.0.0.1:{chosen.grpc},metrics=http://127.0.0.1:{chosen.metrics}/metrics",
        **{
            f"INFLIGHT_{name}_SERVER": f"127.0.0.1:{chosen.grpc}"
            for name in ("GENERATE", "CHAT", "STATUS", "LOAD_RUN", "EMBED")
        },
        **{
            f"INFLIGHT_{name}_METRICS_URL": f"http://127.0.0.1:{chosen.metrics}/metrics"
            for name in ("STATUS", "LOAD_RUN")
        },
    }
    # job control (-m) gives `kill %1` its meaning, as at a prompt
    return subprocess.run(
        ["bash", "-e", "-m", "-c", "\n".join([*lines, "wait"])],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )

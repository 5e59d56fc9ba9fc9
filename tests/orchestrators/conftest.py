"""What both orchestrators run: a job on a small real server, which is stopped in the middle once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.server.server import Server

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples"
ROWS = 60


@dataclass(frozen=True)
class Orchestrated:
    """`environment` holds what an example is run with; its job reads `folder`/prompts.jsonl."""

    folder: Path
    server: str
    environment: dict[str, str]

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def stop_once(self, example: subprocess.Popen[str], *, whole: bool = False) -> int:
        """SIGTERM to the job's own process, once it has answered some rows; how many these were.

        `whole`: to the orchestrator's process instead, which must not share its group with the job.
        """
        until = time.monotonic() + 120
        while time.monotonic() < until:
            assert example.poll() is None, example.communicate()[0]
            for path in self.folder.glob("*.job/progress.json"):
                progress = json.loads(path.read_text())
                if progress["state"] == "running" and progress["counts"]["ok"] >= 3:
                    assert os.getpgid(progress["pid"]) != os.getpgid(example.pid)
                    os.kill(example.pid if whole else progress["pid"], signal.SIGTERM)
                    return int(progress["counts"]["ok"])
            time.sleep(0.1)
        raise AssertionError("no job has begun")

    def counts(self, state: str) -> dict[str, Any]:
        """Of the job, whose last process ended so."""
        (path,) = self.folder.glob("*.job/progress.json")
        progress = json.loads(path.read_text())
        assert progress["state"] == state
        return dict(progress["counts"])

    def finished(self) -> tuple[int, int]:
        """Answers that are there, each of another row, and how many processes the job had."""
        (output,) = (path for path in self.folder.glob("answers*.jsonl"))
        answered = {json.loads(line)["id"] for line in output.read_text().splitlines()}
        return len(answered), int(self.counts("finished")["runs"])


@pytest.fixture
def orchestrated(tmp_path: Path, paced_server: Server) -> Callable[[str], Orchestrated]:
    """`orchestrated("airflow")`: an example's environment; skips where `make test-orchestrators` has made none."""

    def find(name: str) -> Orchestrated:
        place = ROOT / ".cache/orchestrators" / name
        if not (place / ".installed").exists():
            pytest.skip("make test-orchestrators makes its environment")
        rows = (json.dumps({"prompt": f"Tell me about number {number}."}) + "\n" for number in range(ROWS))
        (tmp_path / "prompts.jsonl").write_text("".join(rows))
        environment = {
            "PATH": os.pathsep.join([str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "INFLIGHT_RETRY_DELAY": "1",
            # so that there is a middle to stop in
            "INFLIGHT_BATCH_RUN_CONCURRENCY": "2",
            "INFLIGHT_BATCH_RUN_MAX_TOKENS": "12",
            "INFLIGHT_BATCH_RUN_DRAIN_SECONDS": "1",
        }
        return Orchestrated(tmp_path, paced_server.grpc_address, environment)

    return find

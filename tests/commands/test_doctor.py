from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from build_engines.cpu_precision import choose_precision, find_processor
from tests.fixtures.engines import TinyEngine

MAIN = "from inflight.cli import main; main()"


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )


def test_this_machine_can_serve_and_the_trial_proves_it() -> None:
    done = doctor("--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["can_serve"] is True
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert set(findings) >= {
        "packages", "python", "tritonserver", "engines", "shared memory", "processor", "memory", "ports", "leftovers",
        "smoke test", "gpu", "speed",
    }  # fmt: skip
    processor = find_processor()
    assert str(processor) in findings["processor"]["found"]
    assert f"{choose_precision(processor).precision} weights" in findings["processor"]["found"]
    assert all(f"{name} " in findings["speed"]["found"] for name in ("int8", "bf16", "fp32"))
    assert "runs a python model" in findings["smoke test"]["found"]


def test_a_server_that_can_not_start_is_said_with_a_remedy_and_exit_code_1(
    tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    fake = tmp_path / "bin" / "tritonserver"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho error while loading shared libraries: libdcgm.so.3 >&2\nexit 127\n")
    fake.chmod(0o755)
    done = doctor(str(tiny_engine("llama")), PATH=f"{fake.parent}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "MISSING" in done.stdout
    assert "This machine cannot serve yet." in done.stdout
    assert str(tmp_path) in done.stdout
    assert "Traceback" not in done.stderr


def test_an_openvino_model_is_checked_as_it_is_served(exported_llama: Path, tmp_path: Path) -> None:
    model = shutil.copytree(exported_llama, tmp_path / "model")
    for state in ("ok", "missing"):
        if state == "missing":
            (model / "openvino_model.bin").unlink()
        done = doctor(str(model), "--json")
        findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
        assert (findings["model"]["state"], done.returncode) == (state, int(state != "ok"))


def test_a_run_directory_that_can_not_be_written_is_a_finding_not_a_traceback(
    tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = doctor(str(tiny_engine("llama")), "--json", INFLIGHT_RUN_DIR=str(tmp_path / "file" / "home"))
    assert done.returncode == 1
    assert "can't be written" in done.stdout
    assert done.stderr == ""


def test_what_the_machine_refuses_is_a_finding_not_a_traceback() -> None:
    # A variable of more than 128 KiB, and no process can be started any more.
    program = f"import os, sys; os.environ['LONG'] = 'x' * 200_000; sys.argv[1:] = ['doctor']; {MAIN}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "The machine lacks a resource that the server needs to start" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr

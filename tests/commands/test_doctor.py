from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.cpu_precision import choose_precision, find_processor
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.engines import TinyEngine


@pytest.fixture
def doctor(runner_of: Callable[[str], CommandRunner]) -> CommandRunner:
    return runner_of("doctor")


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of the processor is not looked at, which takes four seconds."""
    monkeypatch.setattr("inflight.commands.doctor._speed", lambda engine_dir: iter(()))


def test_this_machine_can_serve_and_the_trial_proves_it(doctor: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_engines.plan.machine_speed._SECONDS", 250)  # of a busy machine
    done = doctor("--json")
    assert done.code == 0, done.out
    report = json.loads(done.out)
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


@pytest.mark.usefixtures("unmeasured")
def test_a_server_that_can_not_start_is_said_with_a_remedy_and_exit_code_1(
    doctor: CommandRunner, tiny_engine: TinyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "tritonserver"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho error while loading shared libraries: libdcgm.so.3 >&2\nexit 127\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    done = doctor(str(tiny_engine("llama")))
    assert done.code == 1
    assert "MISSING" in done.out
    assert "This machine cannot serve yet." in done.out
    assert str(tmp_path) in done.out
    assert "Traceback" not in done.err


@pytest.mark.usefixtures("unmeasured")
def test_an_openvino_model_is_checked_as_it_is_served(
    doctor: CommandRunner, exported_llama: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(exported_llama, tmp_path / "model")
    for state in ("ok", "missing"):
        if state == "missing":
            (model / "openvino_model.bin").unlink()
        done = doctor(str(model), "--json")
        findings = {finding["name"]: finding for finding in json.loads(done.out)["findings"]}
        assert (findings["model"]["state"], done.code) == (state, int(state != "ok"))


@pytest.mark.usefixtures("unmeasured")
def test_a_run_directory_that_can_not_be_written_is_a_finding_not_a_traceback(
    doctor: CommandRunner, tiny_engine: TinyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFLIGHT_RUN_DIR", str(tmp_path / "file" / "home"))
    done = doctor(str(tiny_engine("llama")), "--json")
    assert (done.code, done.err) == (1, "")
    assert "can't be written" in done.out


def test_what_the_machine_refuses_is_a_finding_not_a_traceback(
    doctor: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONG", "x" * 200_000)  # no process can be started with that
    done = doctor()
    assert done.code == 1
    assert "The machine lacks a resource that the server needs to start" in " ".join(done.out.split())
    assert "Traceback" not in done.err

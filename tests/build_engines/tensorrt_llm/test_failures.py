"""Builds that fail in NVIDIA's programs or are cut off: the old engine is kept, and nothing runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.manifest import verify
from tests.build_engines.build_runs import names
from tests.build_engines.tensorrt_llm.conftest import Build
from tests.fixtures.nvidia import NvidiaPrograms
from tests.fixtures.waiting import wait_until

LIMITS = {"limits.max_batch_size": 8, "limits.max_num_tokens": 1024}
CLI = [sys.executable, "-c", "from inflight.cli import main; main()"]
SMALL = ["--max-batch-size", "8", "--max-num-tokens", "1024", "--target", "tensorrt-llm"]


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the logs of failed builds are kept."""
    directory = tmp_path / "logs"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.mark.parametrize(
    ("fail", "fields", "reason", "code"),
    [
        (
            "convert:exit",
            {},
            "convert_checkpoint.py failed (RuntimeError: CUDA error: an illegal memory access)",
            "build_failed",
        ),
        pytest.param(
            *("quantize:exit", {"quantization": "fp8"}, "quantize.py failed (RuntimeError: CUDA error", "build_failed"),
            marks=pytest.mark.slow,
        ),
        ("build:exit", {}, "trtllm-build failed (RuntimeError: CUDA error", "build_failed"),
        ("build:killed", {}, "trtllm-build failed (it was killed, most likely because memory ran out)", "build_failed"),
        pytest.param(
            *("convert:killed", {}, "convert_checkpoint.py failed (it was killed", "build_failed"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("convert:disk_full", {}, "A disk became full while convert_checkpoint.py ran", "disk_full"),
            marks=pytest.mark.slow,
        ),
        ("build:disk_full", {}, "A disk became full while trtllm-build ran", "disk_full"),
        ("build:other_version", {}, "built by TensorRT-LLM 1.1.0 instead of 1.2.1", "build_failed"),
        ("build:no_ranks", {"tensor_parallel": 2}, "rank 1 of 2 is missing (rank1.engine)", "build_failed"),
        ("convert:no_ranks", {}, "trtllm-build failed (FileNotFoundError: No such file", "build_failed"),
    ],
)
def test_a_program_that_fails_is_told_in_one_sentence_and_leaves_nothing_half_done(
    tmp_path: Path,
    build: Build,
    nvidia_programs: NvidiaPrograms,
    logs: Path,
    fail: str,
    fields: dict[str, object],
    reason: str,
    code: str,
) -> None:
    # One of them over an existing engine; each of these builds takes a second.
    before = build(LIMITS).manifest if fail == "build:disk_full" else None
    nvidia_programs.having(fail=fail)
    with pytest.raises(BuildError) as caught:
        build(LIMITS | fields | {"multiple_profiles": True}, force=True)
    message = str(caught.value)
    assert reason in message
    assert caught.value.code == code
    assert "\n" not in message
    if before:
        assert verify(tmp_path / "engine", hashes=True) == before
    assert names(tmp_path) == ["checkpoint", *(["engine"] if before else []), "logs"]
    kept = [str(path) for path in logs.glob("*.log")]
    assert len(kept) == 1
    assert "LEGACY WARNING" in Path(kept[0]).read_text()
    assert f"see {kept[0]}." in message


@pytest.mark.parametrize(
    ("number", "docker"),
    [
        (signal.SIGINT, False),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_the_programs_and_leaves_the_old_engine(
    tmp_path: Path,
    build: Build,
    checkpoint: Path,
    nvidia_programs: NvidiaPrograms,
    logs: Path,
    number: signal.Signals,
    docker: bool,
) -> None:
    before = build(LIMITS).manifest
    process, program = begun(tmp_path, checkpoint, nvidia_programs, docker)
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in rest
    wait_for_end(program)
    assert verify(tmp_path / "engine", hashes=True) == before
    assert names(tmp_path) == ["checkpoint", "engine", "logs"]
    assert not list(logs.glob("*.log"))


@pytest.mark.parametrize("docker", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_killed_build_takes_the_programs_along(
    tmp_path: Path, build: Build, checkpoint: Path, nvidia_programs: NvidiaPrograms, docker: bool
) -> None:
    """In docker what runs goes on when its client dies, so it is stopped by the container's name."""
    process, program = begun(tmp_path, checkpoint, nvidia_programs, docker)
    process.kill()
    process.communicate(timeout=60)
    wait_for_end(program)
    # What it left beside is swept by the next build.
    if not docker:
        nvidia_programs.having(fail="")
        assert build(LIMITS).fresh
        assert names(tmp_path) == ["checkpoint", "engine", "logs"]


def begun(
    tmp_path: Path, checkpoint: Path, programs: NvidiaPrograms, docker: bool
) -> tuple[subprocess.Popen[str], int]:
    """A build that has come as far as trtllm-build, and that one's process."""
    programs.having(fail="build:slow")
    arguments = ["build", str(checkpoint), "--out", str(tmp_path / "engine"), "--force", *SMALL]
    process = subprocess.Popen(
        [*CLI, *arguments, *(["--docker"] if docker else [])],
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not docker or name != "INFLIGHT_BUILD_EXAMPLES_DIR"},
    )
    mark = tmp_path / ".engine.inflight-partial" / "started"
    wait_until(lambda: process.poll() is not None or (mark.is_file() and mark.read_text()), "trtllm-build")
    return process, int(mark.read_text())


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of trtllm-build")

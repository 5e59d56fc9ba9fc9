"""The whole way of an engine for GPUs: built, compared with the machine, assembled, served; and what goes wrong on it.

NVIDIA's programs, its backend and mpirun are stand-ins. The build, the repository and the servers are real.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from build_engines.manifest import Manifest
from inflight.cli import cli
from inflight.deploy.checks.doctor import Finding, run_checks
from inflight.deploy.errors import DeployError
from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY
from inflight.deploy.server.server import Server
from tests.fixtures.errors import raises
from tests.fixtures.gpu_machine import gpu_machine
from tests.fixtures.nvidia import A100, H100, TrtLlmEngine
from tests.fixtures.open_streams import TIMEOUT
from tests.fixtures.tensorrtllm import GpuEngine, stand_in_backend

MPI = Path(__file__).resolve().parents[1] / "standins" / "mpi"
CLI = [sys.executable, "-c", "from inflight.cli import main; main()"]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with two GPUs, mpirun, and a Triton that has the backend."""
    with stand_in_backend(gpus=2):
        monkeypatch.setenv("PATH", f"{MPI}:{os.environ['PATH']}")
        yield


def silent(line: str) -> None:
    pass


def test_built_assembled_moved_and_served_by_two_ranks(
    trtllm_engine: TrtLlmEngine, tmp_path: Path, backend: None
) -> None:
    engine, out = trtllm_engine(tmp_path / "engine", {"tensor_parallel": 2}), tmp_path / "out"
    done = CliRunner().invoke(cli, ["assemble", str(engine), "--out", str(out), "--set", "max_beam_width=1"])
    assert done.exit_code == 0, done.output
    with Server(out.rename(tmp_path / "moved"), on_message=silent) as server:
        server.instance.probe.generate(TIMEOUT)
        assert {"tritonserver of rank 0", "tritonserver of rank 1"} <= {
            one.name for one in server.instance.process_tree
        }
        assert server.kv_cache_tokens is None, "the backend sizes its cache by the GPU's memory"


@pytest.mark.parametrize(
    ("here", "code", "messages"),
    [
        (
            {"versions": {"tensorrt_llm": "1.1.0", "tensorrt": "10.13.3.9"}},
            "engine_incompatible",
            ("TensorRT-LLM 1.2.1", "1.1.0", "26.07-trtllm"),
        ),
        ({"gpus": [A100] * 2}, "engine_incompatible", ("compute capability 9.0", "GPU 0", "NVIDIA A100")),
        ({"gpus": [H100, A100]}, "engine_incompatible", ("GPU 1", "NVIDIA A100", "CUDA_VISIBLE_DEVICES")),
        ({"gpus": [H100]}, "gpu_missing", ("2 GPUs", "1 visible")),
        ({"gpus": []}, "gpu_missing", ("2 GPUs", "nvidia-smi")),
    ],
)
def test_on_a_machine_that_it_does_not_fit_nothing_is_started(
    gpu_engine: GpuEngine,
    backend: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    here: dict[str, Any],
    code: str,
    messages: tuple[str, ...],
) -> None:
    monkeypatch.setattr("inflight.deploy.server.launcher.TritonProcess", lambda *_: pytest.fail("it was started"))
    (tmp_path / "machine").mkdir()
    gpu_machine(monkeypatch, tmp_path / "machine", **{"gpus": [H100] * 2, **here})
    with raises(DeployError, code, naming=messages):
        Server(gpu_engine("llama", tensor_parallel=2), on_message=silent).start()


def test_doctor_says_the_same_of_an_engine(
    gpu_engine: GpuEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machine").mkdir()
    gpu_machine(monkeypatch, tmp_path / "machine", gpus=[A100])
    monkeypatch.setattr("inflight.deploy.checks.doctor._smoke_test", lambda: Finding("smoke test", "ok", ""))
    engine = gpu_engine("llama", tensor_parallel=2)
    findings = {(one.state, one.found.split(" (")[0]) for one in run_checks(engine) if one.name == "engine"}
    assert ("missing", "This Triton has no backend tensorrtllm") in findings
    assert any(state == "missing" and "compiled on NVIDIA H100" in what for state, what in findings)
    assert any(state == "missing" and "needs 2 GPUs" in what for state, what in findings)


def test_a_rank_that_can_not_load_its_engine_ends_the_start_in_its_own_words(
    gpu_engine: GpuEngine, backend: None
) -> None:
    """Its manifest fits the machine; what lies beside it was compiled by another version."""
    engine = gpu_engine("llama", tensor_parallel=2, tensorrt_llm="1.1.0")
    manifest = Manifest.read(engine)
    manifest.model_copy(update={"versions": {**manifest.versions, "tensorrt_llm": "1.2.1"}}).write(engine)
    server = Server(engine, on_message=silent)
    with raises(DeployError, "server_start_failed", naming="Serialization"):
        server.start()
    assert not list(SHARED_MEMORY_DIRECTORY.glob(f"{server.run_directory.shm_prefix}*"))


def test_a_disk_without_room_for_the_run_directory_is_said(gpu_engine: GpuEngine, tmp_path: Path) -> None:
    """On a separate file system that is too small, which takes the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    script = f'mount -t tmpfs -o size=64k,mode=700 tmpfs {disk} || exit 77; "$@"; echo "ended with $?"'
    arguments = ["serve", str(gpu_engine("llama")), "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *CLI, *arguments],
        env={**os.environ, "INFLIGHT_RUN_DIR": str(disk)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "ended with" not in done.stdout:
        pytest.skip("this user may not mount a file system")
    assert "ended with 1" in done.stdout
    assert done.stderr.splitlines()[-1].endswith("[disk_full]")
    assert "Traceback" not in done.stderr

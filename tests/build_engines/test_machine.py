from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from build_engines.errors import BuildError
from build_engines.machine import (
    Gpu,
    Machine,
    detect_machine,
    find_gpus,
    find_software,
    parse_gpus,
    python_of_tensorrt_llm,
)
from build_engines.manifest import GpuMachine
from tests.fixtures.errors import raises
from tests.fixtures.nvidia import A100, B200, H100, NvidiaPrograms

MIB = 1 << 20


def test_gpus_and_versions_of_this_machine(nvidia_programs: NvidiaPrograms) -> None:
    nvidia_programs.having(gpus=[H100, H100])
    machine = detect_machine()
    assert [gpu.index for gpu in machine.gpus] == [0, 1]
    assert machine.gpus[1] == Gpu(1, "NVIDIA H100 80GB HBM3", "9.0", "590.48.01", 81559 * MIB)
    versions = [machine.versions.get(name) for name in ("tensorrt_llm", "tensorrt", "cuda")]
    assert versions == ["1.2.1", "10.14.1.48", "13.1.0.036"]
    assert machine.built_on == GpuMachine(gpu="NVIDIA H100 80GB HBM3", compute_capability="9.0", driver="590.48.01")


def test_a_container_is_asked_through_docker(nvidia_programs: NvidiaPrograms) -> None:
    nvidia_programs.having(gpus=[B200])
    image = nvidia_programs.images[0]
    machine = detect_machine(["docker", "run", "--rm", "--gpus", "all", image])
    assert machine.gpus[0].compute_capability == "10.0"
    assert machine.versions.get("tensorrt_llm") == "1.2.1"
    assert all(image in run for run in nvidia_programs.docker_runs())
    assert detect_machine(["docker", "run", "--rm", "some/other:image"]) == Machine()


def test_a_machine_without_nvidia_s_driver_has_no_gpu(nvidia_programs: NvidiaPrograms) -> None:
    nvidia_programs.having(gpus=[])
    assert find_gpus() == ()
    assert detect_machine().built_on is None


def test_a_machine_without_nvidia_s_programs_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert find_gpus() == ()
    assert python_of_tensorrt_llm() == ["python3"]
    assert detect_machine().versions.get("tensorrt_llm") is None


def test_the_python_that_is_asked_is_the_one_of_trtllm_build(nvidia_programs: NvidiaPrograms) -> None:
    assert python_of_tensorrt_llm() == ["/usr/bin/env", "python3"]


def test_boards_that_share_the_systems_memory_say_none() -> None:
    assert parse_gpus("0, NVIDIA GB10, 12.1, 590.44.01, [N/A]\n")[0].memory_bytes == 0


def test_an_answer_that_cannot_be_read_is_told() -> None:
    with raises(BuildError, "build_failed", naming="Unable to determine"):
        parse_gpus("Unable to determine\n")


def test_a_containers_banner_is_not_a_gpu() -> None:
    banner = "\n=== Triton Inference Server ===\nCopyright (c) 2018-2026, NVIDIA CORPORATION & AFFILIATES\n\n"
    assert len(parse_gpus(banner + "0, NVIDIA L4, 8.9, 590.48.01, 23034\n")) == 1


def test_gpus_of_two_kinds_are_in_order(nvidia_programs: NvidiaPrograms) -> None:
    nvidia_programs.having(gpus=[A100, H100])
    assert [gpu.compute_capability for gpu in find_gpus()] == ["8.0", "9.0"]


def test_gpus_that_cuda_may_not_see_are_not_there(
    nvidia_programs: NvidiaPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_programs.having(gpus=[A100, H100])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.compute_capability for gpu in detect_machine().gpus] == ["9.0"]


def test_looking_at_the_software_runs_nothing_of_the_current_directory(poisoned: Callable[[], str]) -> None:
    find_software(python=[sys.executable])
    assert poisoned() == ""

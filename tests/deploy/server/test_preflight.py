from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build_engines import machine
from build_engines.cpu_precision import Processor
from build_engines.machine import Gpu, Machine
from build_engines.manifest import EncoderManifest, GpuMachine, Manifest
from inflight import __version__
from inflight.deploy import memory
from inflight.deploy.errors import DeployError
from inflight.deploy.repository import kv_budget
from inflight.deploy.repository.environment import required_environment
from inflight.deploy.server import preflight
from tests.fixtures.errors import raises
from tests.fixtures.manifests import encoder_manifest, manifest
from tests.fixtures.nvidia import A100, NvidiaPrograms

VERSIONS = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48", "cuda": "13.1.0.036"}


def gpu(index: int = 0, name: str = "NVIDIA H100", capability: str = "9.0", driver: str = "590.48.01") -> Gpu:
    return Gpu(index, name, capability, driver, 80 << 30)


def engine(**changes: Any) -> Manifest:
    """The manifest of an engine of TensorRT-LLM 1.2.1, compiled on an H100."""
    compiled = GpuMachine(gpu="NVIDIA H100", compute_capability="9.0", driver="590.48.01")
    fields = {"target": "tensorrt-llm", "name": "demo", "versions": VERSIONS, "machine": compiled, **changes}
    return manifest().model_copy(update=fields)


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    (tmp_path / "tensorrtllm").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(preflight, "find_processor", lambda: Processor("Xeon", 2, ("AMX",)))


def found(of: Manifest | EncoderManifest, here: Machine, backends: Path) -> list[tuple[str | None, str]]:
    return [(problem.code, problem.sentence) for problem in preflight.find_problems(of, here, backends)]


def test_an_engine_on_the_machine_that_built_it_has_no_problem(backends: Path) -> None:
    assert found(engine(), Machine((gpu(),), VERSIONS), backends) == []
    assert found(engine(tensor_parallel=2), Machine((gpu(0), gpu(1)), VERSIONS), backends) == []


@pytest.mark.parametrize(
    ("precision", "features", "slow"),
    [("bf16", ("VNNI",), True), ("bf16", ("AMX", "VNNI"), False), ("int8", ("AMX",), False), ("fp32", (), False)],
)
def test_weights_that_are_slow_on_the_processor_are_told_and_served(
    backends: Path, monkeypatch: pytest.MonkeyPatch, precision: str, features: tuple[str, ...], slow: bool
) -> None:
    monkeypatch.setattr(preflight, "find_processor", lambda: Processor("Xeon", 2, features))
    problems = found(engine(target="openvino", precision=precision), Machine(), backends)
    assert [code for code, _ in problems] == [None] * slow
    assert all("--precision int8" in sentence for _, sentence in problems)


@pytest.mark.parametrize("target", ["openvino", "tensorrt-llm"])
def test_an_engine_of_another_version_of_inflight_is_told_and_served(backends: Path, target: str) -> None:
    made = engine(target=target, versions={**VERSIONS, "inflight": "9.9.0"})
    ((code, sentence),) = found(made, Machine((gpu(),), VERSIONS), backends)
    assert code is None
    assert f"demo was built by inflight 9.9.0 and this is {__version__}" in sentence
    messages: list[str] = []
    if target == "openvino":
        preflight.check_engine(made, backends, messages.append)
        assert messages == [f"Warning: {sentence}"]
    fits = engine(target=target, versions={**VERSIONS, "inflight": __version__})
    assert found(fits, Machine((gpu(),), VERSIONS), backends) == []


def test_the_embedded_engine_needs_nothing_of_all_this(tmp_path: Path) -> None:
    assert found(manifest(), Machine(), tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("changes", "here", "code", "message"),
    [
        (
            {},
            Machine((gpu(),), {**VERSIONS, "tensorrt_llm": "1.1.0"}),
            "engine_incompatible",
            "demo was compiled by TensorRT-LLM 1.2.1, and 1.1.0 here can't read it; serve it in the container"
            " nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 (TensorRT-LLM 1.2.1), or build it again here.",
        ),
        (
            {"versions": {"tensorrt_llm": "1.9.9", "tensorrt": "10.14.1.48"}},
            Machine((gpu(),), VERSIONS),
            "engine_incompatible",
            "serve it in a container with TensorRT-LLM 1.9.9",
        ),
        (
            {},
            Machine((gpu(),), {**VERSIONS, "tensorrt": "10.13.3.9"}),
            "engine_incompatible",
            "compiled by TensorRT 10.14.1.48, and 10.13.3.9 here",
        ),
        (
            {},
            Machine((gpu(name="NVIDIA A100", capability="8.0"),), VERSIONS),
            "engine_incompatible",
            "demo was compiled on NVIDIA H100 (compute capability 9.0) and GPU 0 here is NVIDIA A100 (8.0), which can't"
            " run it; build it again here",
        ),
        (
            {"tensor_parallel": 2, "pipeline_parallel": 2},
            Machine((gpu(0), gpu(1)), VERSIONS),
            "gpu_missing",
            "needs 4 GPUs (tensor parallel 2, pipeline parallel 2) and this machine has 2 visible",
        ),
        ({}, Machine((), VERSIONS), "gpu_missing", "needs 1 GPU (tensor"),
        (
            {},
            Machine((gpu(driver="570.86.15"),), VERSIONS),
            None,
            "The driver here is 570.86.15, and CUDA 13.1.0.036 of TensorRT-LLM 1.2.1 came with 590.44.01",
        ),
        ({}, Machine((gpu(),)), None, "No TensorRT-LLM was found here to compare with the 1.2.1"),
    ],
)
def test_each_thing_that_does_not_fit_is_one_sentence_with_what_to_do(
    backends: Path, changes: dict[str, Any], here: Machine, code: str | None, message: str
) -> None:
    problem = found(engine(**changes), here, backends)[0]
    assert problem[0] == code
    assert message in problem[1]


@pytest.mark.parametrize(
    ("here", "code", "message"),
    [
        (Machine((gpu(),), {"tensorrt": "10.14.1.48"}), None, ""),
        (
            Machine((gpu(),), {"tensorrt": "11.1.0"}),
            "engine_incompatible",
            "by TensorRT 10.14.1.48, and 11.1.0",
        ),
        (Machine((gpu(name="A100", capability="8.0"),), VERSIONS), "engine_incompatible", "A100 (8.0)"),
        (Machine((gpu(name="NVIDIA H200"),), VERSIONS), None, "GPU 0 here is NVIDIA H200"),
        (Machine((), VERSIONS), "gpu_missing", "nvidia-smi lists no GPUs"),
    ],
)
def test_a_plan_of_tensorrt_needs_its_version_and_its_gpu(
    tmp_path: Path, here: Machine, code: str | None, message: str
) -> None:
    compiled = GpuMachine(gpu="NVIDIA H100", compute_capability="9.0", driver="590.48.01")
    made = encoder_manifest("embed", target="tensorrt", machine=compiled, versions={"tensorrt": "10.14.1.48"})
    problems = list(preflight.find_problems(made, here, tmp_path))
    assert [problem.code for problem in problems] == ([code] if message else [])
    assert all(message in problem.sentence for problem in problems)


def test_a_triton_without_the_backend_is_told_before_all_else(tmp_path: Path) -> None:
    [first, *_] = found(engine(), Machine(), tmp_path)
    assert first[0] == "server_not_found"
    assert "This Triton has no backend tensorrtllm" in first[1]
    assert "serve it in the container nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in first[1]


def test_the_llm_api_needs_gpus_enough_but_no_version_of_its_own(tmp_path: Path) -> None:
    api = engine(target="llmapi", machine=None, versions={"tensorrt_llm": "1.1.0"}, tensor_parallel=2)
    assert found(api, Machine((gpu(0), gpu(1)), VERSIONS), tmp_path) == []
    assert found(api, Machine((gpu(),), VERSIONS), tmp_path)[0][0] == "gpu_missing"
    assert found(api, Machine(), tmp_path)[0][0] is None, "it says itself what it misses"


@pytest.mark.parametrize(("version", "code"), [("1.2.1", "engine_incompatible"), ("1.3.0rc20", None), (None, None)])
def test_an_encoder_of_the_llm_api_needs_a_version_that_encodes(
    tmp_path: Path, version: str | None, code: str | None
) -> None:
    here = Machine((gpu(),), {"tensorrt_llm": version} if version else {})
    problems = found(encoder_manifest("embed", target="llmapi"), here, tmp_path)
    assert [problem[0] for problem in problems] == ([code] if code else [])


@pytest.mark.parametrize(("needed", "warns"), [(1 << 29, False), (2 << 30, True), (None, False)])
def test_an_encoder_without_memory_for_its_longest_text_is_told_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: int | None, warns: bool
) -> None:
    monkeypatch.setattr("inflight.deploy.memory.available_bytes", lambda: 1 << 30)
    problems = found(encoder_manifest("embed", longest_text_bytes=needed), Machine(), tmp_path)
    assert [code for code, _ in problems] == [None] * warns
    assert all("--max-seq-len" in sentence for _, sentence in problems)


@pytest.mark.parametrize(
    ("value", "left"), [("1", [1]), ("0, 2", [0, 2]), ("", []), ("GPU-1234,GPU-5678", [0, 1]), (None, [0, 1, 2])]
)
def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch, value: str | None, left: list[int]) -> None:
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert [one.index for one in preflight.visible_gpus((gpu(0), gpu(1), gpu(2)))] == left


def test_a_gpu_of_another_kind_can_be_hidden(backends: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine((gpu(0), gpu(1, "NVIDIA A100", "8.0")), VERSIONS)
    assert found(engine(), here, backends)[0][0] == "engine_incompatible"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert found(engine(), here, backends) == []


def test_check_looks_at_this_machine_and_only_for_engines_that_need_it(
    nvidia_programs: NvidiaPrograms, backends: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    preflight.check_engine(engine(), backends, messages.append)
    assert messages == []
    nvidia_programs.having(gpus=[A100])
    with raises(DeployError, "engine_incompatible", naming=("9.0", "NVIDIA A100", "8.0")):
        preflight.check_engine(engine(), backends, messages.append)
    monkeypatch.setattr(machine, "detect_machine", lambda: pytest.fail("nobody asked for it"))
    preflight.check_engine(manifest(), backends, messages.append)


def test_what_may_not_matter_is_only_reported(nvidia_programs: NvidiaPrograms, backends: Path) -> None:
    messages: list[str] = []
    old = {**nvidia_programs.gpus[0], "driver": "570.86.15"}
    nvidia_programs.having(gpus=[old])
    preflight.check_engine(engine(), backends, messages.append)
    assert [line.startswith("Warning: The driver here is 570.86.15") for line in messages] == [True]


def test_where_it_runs_is_said_in_words() -> None:
    assert required_environment(manifest()) is None
    assert required_environment(engine(tensor_parallel=2)) == (
        "the container nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 (TensorRT-LLM 1.2.1), on GPUs of compute"
        " capability 9.0, 2 of them"
    )


def test_a_kv_cache_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    small = manifest()
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000 * kv_budget.bytes_per_token(small))
    for tokens in (None, 1000):
        preflight.check_kv_cache(small, tokens)
    with raises(DeployError, "invalid_parameter", naming="--kv-cache-tokens"):
        preflight.check_kv_cache(small, 1001)
    preflight.check_kv_cache(small.model_copy(update={"target": "llmapi"}), 1001)

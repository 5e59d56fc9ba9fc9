"""What can be served beside an engine directory: an assembled repository, in a directory or on S3."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from inflight_client import Client

from build_engines.errors import BuildError
from build_engines.manifest import GpuFeatures, verify
from inflight.deploy.errors import DeployError
from inflight.deploy.publish.publish import publish_repository
from inflight.deploy.publish.s3_address import S3Address
from inflight.deploy.repository import manifest, model_configs
from inflight.deploy.repository.assemble import AssemblyRequest, assemble_repository, engine_path_inside
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server import process_layout
from inflight.deploy.server.server import Server
from inflight.deploy.server.source import find_source, prepare_repository
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.gpu_machine import gpu_machine
from tests.fixtures.nvidia import H100
from tests.fixtures.s3_server import S3TestBucket, s3_server
from tests.fixtures.tensorrtllm import GpuEngine

USUAL = DeploymentOptions()
MPI = Path(__file__).resolve().parents[2] / "standins" / "mpi"


@pytest.fixture(scope="module")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def engine(tiny_engine: TinyEngine) -> Path:
    return tiny_engine("llama")


@pytest.fixture
def repository(engine: Path, tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    assemble_repository(AssemblyRequest(EngineSet.find(engine), USUAL), tmp_path / "repository")
    return tmp_path / "repository"


def silent(line: str) -> None:
    pass


def said(server: Server) -> str:
    with Client(server.grpc_address) as client:
        return client.generate("hello", max_tokens=12).text


def test_a_repository_on_s3_is_read_by_triton_itself_and_says_what_the_engine_says(
    storage: S3TestBucket, engine: Path, server: Server
) -> None:
    address = storage.address("llama/v1")
    publish_repository(AssemblyRequest(EngineSet.find(engine), USUAL), S3Address.parse(address), silent)
    with Server(address, on_message=silent) as running:
        assert running.manifest.name == server.manifest.name
        assert said(running) == said(server)
        assert "the stub of postprocessing" in {member.name for member in running.instance.process_tree}
        run = running.run_directory.path
        assert len(list((run / "models").iterdir())) == 3, "it was copied to where nobody sweeps"
    assert not run.exists()


def test_a_repository_that_was_moved_is_served_where_it_is(repository: Path, server: Server, tmp_path: Path) -> None:
    moved = repository.rename(tmp_path / "moved")
    with Server(moved) as running:
        assert said(running) == said(server)
    assert manifest.verify_repository(moved, hashes=True), "serving has changed it"


def test_a_path_among_the_parameters_is_there_or_nothing_starts(gpu_engine: GpuEngine, tmp_path: Path) -> None:
    """Checked by who serves alone: a repository is assembled for another machine, too."""
    adapters = tmp_path / "adapters"
    options = DeploymentOptions(settings={"lora_prefetch_dir": str(adapters)})
    source = find_source(gpu_engine("llama", features=GpuFeatures(lora=True)), options)
    with raises(DeployError, "invalid_parameter", naming=("lora_prefetch_dir", str(adapters))):
        prepare_repository(source, options, tmp_path / "without", silent)
    adapters.mkdir()
    assert prepare_repository(source, options, tmp_path / "with", silent).parameters["lora_prefetch_dir"] == str(
        adapters
    )


def test_a_repository_has_its_options_already(repository: Path) -> None:
    with raises(DeployError, "invalid_parameter", naming=("--max-queue-size", "--no-decoupled", "--lora")):
        find_source(repository, DeploymentOptions(max_queue_size=3, decoupled=False, adapters=(Path("a"),)))
    with raises(DeployError, "invalid_parameter", naming="--served-model-name"):
        find_source(repository, DeploymentOptions(served_model_name="tea"))


@pytest.mark.parametrize("name", [None, "teas/tea-1b"])
def test_the_served_model_name_is_that_of_the_options_or_the_engine(
    engine: Path, tmp_path: Path, name: str | None
) -> None:
    options = DeploymentOptions(served_model_name=name)
    (tmp_path / "repository").mkdir()
    assemble_repository(AssemblyRequest(EngineSet.find(engine, options), options), tmp_path / "repository")
    expected = name or verify(engine).name
    assert find_source(tmp_path / "repository", USUAL).model_name == expected
    assert find_source(engine, options).model_name == expected
    served = model_configs.load(tmp_path / "repository")["ensemble"].parameters["inflight_served"].string_value
    assert json.loads(served)["model"] == expected


def test_an_engine_that_lies_elsewhere_must_lie_there_and_be_that_one(
    engine: Path, server: Server, tmp_path: Path
) -> None:
    place, out = tmp_path / "engines" / "llama", tmp_path / "out"
    publish_repository(AssemblyRequest(EngineSet.find(engine), USUAL, engine_path=str(place)), out, silent)
    with raises(BuildError, "engine_not_found", naming=str(place)):
        find_source(out, USUAL)
    shutil.copytree(engine, place)
    with Server(out) as running:
        assert said(running) == said(server)
    verify(engine).model_copy(update={"name": "other"}).write(place)
    with raises(DeployError, "engine_incompatible", naming=str(place)):
        find_source(out, USUAL)


def test_one_of_another_version_or_a_damaged_one_is_refused_before_anything_starts(repository: Path) -> None:
    path = repository / manifest.MANIFEST_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "inflight_version": "9.9.0"}))
    with raises(DeployError, "engine_incompatible", naming="9.9.0"):
        Server(repository).start()
    (repository / "ensemble" / "config.pbtxt").unlink()
    with raises(DeployError, "engine_damaged", naming="ensemble/config.pbtxt"):
        Server(repository).start()


def test_what_is_not_on_s3_or_only_half_is_said(storage: S3TestBucket) -> None:
    for name, expected in (("inflight.unfinished", "engine_damaged"), ("letter", "engine_not_found")):
        storage.client.put_object(Bucket=storage.bucket, Key=f"{expected}/{name}", Body=b"")
        with raises(DeployError, expected):
            find_source(storage.address(expected), USUAL)


def test_a_copy_from_s3_that_has_no_room_is_refused_before_it_is_made(
    storage: S3TestBucket, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = storage.address("llama/large")
    publish_repository(AssemblyRequest(EngineSet.find(engine), USUAL), S3Address.parse(address), silent)
    source = find_source(address, USUAL)
    nothing = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: nothing)
    with raises(DeployError, "disk_full", naming="TRITON_AWS_MOUNT_DIRECTORY"):
        prepare_repository(source, USUAL, tmp_path, silent)


def test_a_new_start_begins_without_what_an_earlier_one_has_copied(
    storage: S3TestBucket, engine: Path, tmp_path: Path
) -> None:
    address = storage.address("llama/again")
    publish_repository(AssemblyRequest(EngineSet.find(engine), USUAL), S3Address.parse(address), silent)
    deployment = prepare_repository(find_source(address, USUAL), USUAL, tmp_path, silent)
    copies = Path(deployment.environment["TRITON_AWS_MOUNT_DIRECTORY"])
    assert copies.is_relative_to(tmp_path), "nobody would sweep it"
    (copies / "folder123").mkdir()
    deployment.clear_downloads()
    assert list(copies.iterdir()) == []


def test_where_triton_copies_to_can_be_said_and_is_then_not_emptied(
    storage: S3TestBucket, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = storage.address("llama/elsewhere")
    publish_repository(AssemblyRequest(EngineSet.find(engine), USUAL), S3Address.parse(address), silent)
    monkeypatch.setenv("TRITON_AWS_MOUNT_DIRECTORY", str(tmp_path / "large"))
    deployment = prepare_repository(find_source(address, USUAL), USUAL, tmp_path, silent)
    assert deployment.environment["TRITON_AWS_MOUNT_DIRECTORY"] == str(tmp_path / "large")
    (tmp_path / "large" / "theirs").mkdir()
    deployment.clear_downloads()
    assert (tmp_path / "large" / "theirs").is_dir()


def test_the_engine_of_the_cpp_backend_is_fetched_from_s3_to_where_it_is_found(
    storage: S3TestBucket, gpu_engine: GpuEngine, tmp_path: Path
) -> None:
    engine = gpu_engine("llama")
    address = storage.address("cpp/v1")
    publish_repository(AssemblyRequest(EngineSet.find(engine), USUAL), S3Address.parse(address), silent)
    deployment = prepare_repository(find_source(address, USUAL), USUAL, tmp_path, silent)
    place = Path(deployment.parameters["gpt_model_path"])
    assert verify(place) == verify(engine)
    assert deployment.parameters["tokenizer_dir"] == str(place)
    assert place.is_relative_to(tmp_path), "it outlives the server"
    assert (Path(deployment.repository) / "preprocessing/1/tokenizer/tokenizer.json").is_file()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_how_many_processes_it_takes_is_read_from_s3_too(
    storage: S3TestBucket,
    gpu_engine: GpuEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: bool,
) -> None:
    (tmp_path / "machine").mkdir()
    gpu_machine(monkeypatch, tmp_path / "machine", [H100] * 2)
    monkeypatch.setenv("PATH", f"{MPI}:{os.environ['PATH']}")
    engine = gpu_engine("llama")
    options = DeploymentOptions(
        settings={"gpu_device_ids": "0;1", "executor_worker_path": str(MPI / "trtllmExecutorWorker")}
    )
    address = storage.address(f"cpp/instances-{elsewhere}")
    order = AssemblyRequest(EngineSet.find(engine), options, engine_path=str(engine) if elsewhere else None)
    publish_repository(order, S3Address.parse(address), silent)
    source = find_source(address, USUAL)
    deployment = prepare_repository(source, USUAL, tmp_path, silent)
    assert deployment.parameters["gpu_device_ids"] == "0;1"
    assert process_layout.choose_layout(source.engines.main, deployment.parameters, None).mode == "orchestrator"


def test_the_engine_of_the_cpp_backend_is_named_where_the_repository_stands(
    gpu_engine: GpuEngine, tmp_path: Path
) -> None:
    engine, out = gpu_engine("llama"), tmp_path / "out"
    publish_repository(AssemblyRequest(EngineSet.find(engine), USUAL), out, silent)
    assert f'string_value: "{engine_path_inside(out)}"' in (out / "tensorrt_llm" / "config.pbtxt").read_text()
    assert prepare_repository(find_source(out, USUAL), USUAL, tmp_path, silent).repository == str(out)
    moved = out.rename(tmp_path / "moved")
    before = (moved / "tensorrt_llm" / "config.pbtxt").read_bytes()
    deployment = prepare_repository(find_source(moved, USUAL), USUAL, tmp_path / "run", silent)
    assert deployment.parameters["gpt_model_path"] == str(engine_path_inside(moved))
    assert (Path(deployment.repository) / "preprocessing/1/model.py").is_file()
    assert (moved / "tensorrt_llm" / "config.pbtxt").read_bytes() == before, "another server may read it too"
    assert not (moved / "tensorrt_llm" / "1" / "model.py").exists()

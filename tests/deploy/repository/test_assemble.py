from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from build_engines.manifest import verify
from inflight import __version__
from inflight.deploy.errors import DeployError
from inflight.deploy.publish.s3_repository import UploadMarker
from inflight.deploy.repository import manifest as card
from inflight.deploy.repository import model_configs
from inflight.deploy.repository.assemble import AssemblyRequest, assemble_repository
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.repository.engine_set import EngineSet
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.manifests import engine_set
from tests.fixtures.tensorrtllm import GpuEngine


@pytest.fixture(scope="module")
def engine(tiny_engine: TinyEngine) -> Path:
    return tiny_engine("llama")


def written(order: AssemblyRequest, out: Path) -> card.RepositoryManifest:
    out.mkdir(parents=True)
    return assemble_repository(order, out)


def parameters(repository: Path, model: str) -> dict[str, str]:
    config = model_configs.load(repository)[model]
    return {key: value.string_value for key, value in config.parameters.items()}


def test_all_that_a_model_needs_lies_in_its_own_version(engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "repository"
    written(AssemblyRequest(EngineSet.find(engine), DeploymentOptions()), out)
    for config in out.glob("*/config.pbtxt"):
        text = config.read_text()
        assert str(engine) not in text
        assert "/" not in text.replace("1/engine", "").replace("1/tokenizer", ""), f"{config} names another place"
    for model in ("preprocessing", "postprocessing"):
        assert parameters(out, model)["tokenizer_dir"] == "1/tokenizer"
        assert (out / model / "1/tokenizer/tokenizer.json").read_bytes() == (engine / "tokenizer.json").read_bytes()
        assert not list((out / model).rglob("*.bin")), "the weights are the engine's alone"
    assert parameters(out, "tensorrt_llm")["gpt_model_path"] == "1/engine"
    assert verify(out / "tensorrt_llm/1/engine", hashes=True) == verify(engine)


def test_the_models_that_render_messages_get_all_templates(engine: Path, tmp_path: Path) -> None:
    shutil.copytree(engine, tmp_path / "engine")
    further = tmp_path / "engine" / "additional_chat_templates"
    further.mkdir()
    (further / "tool_use.jinja").write_text("{{ tools }}")
    written(AssemblyRequest(EngineSet.find(tmp_path / "engine"), DeploymentOptions()), tmp_path / "out")
    for name in ("chat_template.jinja", "tokenizer_config.json", "additional_chat_templates/tool_use.jinja"):
        brought = tmp_path / "out" / "preprocessing/1/tokenizer" / name
        assert brought.read_bytes() == (tmp_path / "engine" / name).read_bytes()


def test_no_directory_is_empty_as_s3_has_none(engine: Path, tmp_path: Path) -> None:
    written(
        AssemblyRequest(EngineSet.find(engine), DeploymentOptions(), engine_path="/engines/llama"), tmp_path / "out"
    )
    for directory in (path for path in (tmp_path / "out").rglob("*") if path.is_dir()):
        assert any(directory.iterdir()), directory


def test_each_of_our_models_and_the_card_say_which_version_wrote_them(engine: Path, tmp_path: Path) -> None:
    written(AssemblyRequest(EngineSet.find(engine), DeploymentOptions()), tmp_path / "out")
    for model in ("preprocessing", "postprocessing", "tensorrt_llm"):
        assert parameters(tmp_path / "out", model)["inflight_version"] == __version__
    assert json.loads((tmp_path / "out" / card.MANIFEST_FILE).read_text())["inflight_version"] == __version__


def test_an_engine_that_lies_elsewhere_is_named_and_not_copied(engine: Path, tmp_path: Path) -> None:
    order = AssemblyRequest(EngineSet.find(engine), DeploymentOptions(), engine_path="/engines/llama")
    assert written(order, tmp_path / "out").engine_path == "/engines/llama"
    assert parameters(tmp_path / "out", "tensorrt_llm")["gpt_model_path"] == "/engines/llama"
    assert parameters(tmp_path / "out", "preprocessing")["tokenizer_dir"] == "1/tokenizer"
    assert not list((tmp_path / "out").rglob("*.bin"))


def test_draft_engine_and_adapters_come_along(engine: Path, tmp_path: Path) -> None:
    """An adapter's settings too: its scale is in them."""
    adapters = (tmp_path / "alone" / "one.safetensors", tmp_path / "two")
    for place in (tmp_path / "alone", tmp_path / "two"):
        place.mkdir()
    adapters[0].write_text("one")
    (adapters[1] / "adapter_model.safetensors").write_text("two")
    (adapters[1] / "adapter_config.json").write_text("{}")
    options = DeploymentOptions(draft_engine=engine, adapters=adapters)
    written(AssemblyRequest(EngineSet.find(engine, options), options), tmp_path / "out")
    values = parameters(tmp_path / "out", "tensorrt_llm")
    folder = tmp_path / "out" / "tensorrt_llm"
    assert verify(folder / values["draft_model_path"]) == verify(engine)
    places = [folder / path for path in json.loads(values["lora_adapters"])]
    assert [(place / "adapter_model.safetensors").read_text() for place in places] == ["one", "two"]
    assert [(place / "adapter_config.json").is_file() for place in places] == [False, True]


def test_the_same_order_gives_the_same_bytes_whatever_memory_is_free(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = AssemblyRequest(EngineSet.find(engine), DeploymentOptions(), vendored=True)
    first = written(order, tmp_path / "one")
    monkeypatch.setattr("inflight.deploy.memory.available_bytes", lambda: 1 << 40)
    assert written(order, tmp_path / "two") == first


def test_what_was_asked_differs_by_its_digest(engine: Path, tmp_path: Path) -> None:
    manifest, engines = verify(engine), EngineSet.find(engine)
    adapter = tmp_path / "adapter"
    adapter.write_text("1")
    orders = [
        AssemblyRequest(engines, DeploymentOptions()),
        AssemblyRequest(engines, DeploymentOptions(max_num_sequences=3)),
        AssemblyRequest(engines, DeploymentOptions(), vendored=True),
        AssemblyRequest(engines, DeploymentOptions(), engine_path="/e"),
        AssemblyRequest(engine_set(engine, manifest.model_copy(update={"name": "other"})), DeploymentOptions()),
        AssemblyRequest(engines, DeploymentOptions(adapters=(adapter,))),
    ]
    digests = [order.options_digest() for order in orders]
    adapter.write_text("2")
    assert len({*digests, orders[-1].options_digest()}) == len(orders) + 1


def test_an_engine_that_is_not_what_it_says_once_it_was_copied_is_refused(engine: Path, tmp_path: Path) -> None:
    def short(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:100])

    (tmp_path / "out").mkdir()
    with raises(DeployError, "engine_damaged", naming="chat_template.jinja"):
        assemble_repository(
            AssemblyRequest(EngineSet.find(engine), DeploymentOptions()), tmp_path / "out", place_file=short
        )
    assert not (tmp_path / "out" / card.MANIFEST_FILE).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine_path": ""}, "--engine-path is empty"),
        ({"engine_path": "relative/p"}, ("--engine-path", "'relative/p'")),
        ({"repository_path": Path("")}, "--repository-path is empty"),
        ({"repository_path": Path("models")}, ("--repository-path", "'models'")),
        (
            {"repository_path": Path("/m"), "engine_path": "/e"},
            "--repository-path and --engine-path",
        ),
        ({"repository_path": Path("/m\udcff")}, "UTF-8"),
    ],
)
def test_a_place_that_nobody_could_serve_from_is_refused(
    gpu_engine: GpuEngine, changes: dict[str, Any], message: str
) -> None:
    engine = gpu_engine("llama")
    with raises(DeployError, "invalid_parameter", naming=message):
        AssemblyRequest(EngineSet.find(engine), DeploymentOptions(), **changes).check()


def test_a_home_is_for_engines_that_are_not_found_without(engine: Path) -> None:
    with raises(DeployError, "invalid_parameter", naming="--repository-path"):
        AssemblyRequest(EngineSet.find(engine), DeploymentOptions(), repository_path=Path("/models")).check()


def test_where_it_will_stand_makes_a_difference_where_it_is_written_alone(engine: Path, gpu_engine: GpuEngine) -> None:
    for one, differs in ((engine, False), (gpu_engine("llama"), True)):
        orders = [
            AssemblyRequest(EngineSet.find(one), DeploymentOptions(), repository_path=Path(home))
            for home in ("/a", "/b")
        ]
        assert (orders[0].options_digest() != orders[1].options_digest()) is differs


def test_a_file_in_the_engine_directory_that_a_parameter_names_comes_along(
    gpu_engine: GpuEngine, tmp_path: Path
) -> None:
    engine, name = gpu_engine("llama"), "xgrammar_tokenizer_info.json"
    (engine / name).write_text("{}")
    options = DeploymentOptions(settings={"xgrammar_tokenizer_info_path": str(engine / name)})
    order = AssemblyRequest(EngineSet.find(engine), options, repository_path=tmp_path / "out")
    manifest = written(order, tmp_path / "out")
    values = parameters(tmp_path / "out", "tensorrt_llm")
    assert values["guided_decoding_backend"] == "xgrammar"
    assert values["xgrammar_tokenizer_info_path"].startswith(str(tmp_path / "out"))
    assert Path(values["xgrammar_tokenizer_info_path"]).read_text() == "{}"
    assert f"tensorrt_llm/1/engine/{name}" in manifest.files
    before = order.options_digest()
    (engine / name).write_text('{"other": 1}')
    assert order.options_digest() != before


def test_a_card_knows_what_is_damaged(engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    order = AssemblyRequest(EngineSet.find(engine), DeploymentOptions())
    assert written(order, out) == card.verify_repository(out)
    (out / "preprocessing/1/__pycache__").mkdir()  # what Python leaves there is no damage
    path = out / "tensorrt_llm/1/engine/openvino_model.bin"
    weights = path.read_bytes()
    for content, message in (
        (weights[:-1] + b"?", "has another content than inflight.json says"),
        (b"short", "has 5 bytes where"),
        (None, "is missing"),
    ):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with raises(DeployError, "engine_damaged", naming=("openvino_model.bin", message)):
            card.verify_repository(out)
        path.touch()


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"{", "engine_damaged"), (b'{"format": 9}', "engine_incompatible"), (b"{}", "engine_damaged")],
)
def test_a_card_that_can_not_be_read_is_said(content: bytes, code: str) -> None:
    with raises(DeployError, code, naming="there/inflight.json"):
        card.RepositoryManifest.parse(content, "there/inflight.json")


def test_a_card_names_files_of_its_repository_alone(engine: Path, tmp_path: Path) -> None:
    manifest = json.loads(
        written(AssemblyRequest(EngineSet.find(engine), DeploymentOptions()), tmp_path / "out").content()
    )
    manifest["files"]["../x"] = {"sha256": "", "bytes": 0}
    with raises(DeployError, "engine_damaged"):
        card.RepositoryManifest.parse(json.dumps(manifest).encode(), "there/inflight.json")


def test_what_can_not_be_read_lists_nothing() -> None:
    for content in (b"", b"[]", b'{"files": 1}', b'{"files":' * 200_000):
        assert card.listed_files(content) == set()
        assert UploadMarker.parse(content) == UploadMarker(frozenset(), "")


def test_no_file_is_put_behind_a_link_out_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "model").symlink_to(tmp_path)
    for name in ("model/x", "../x"):
        with raises(DeployError, "engine_damaged"):
            card.path_inside(tmp_path / "repository", name)


def test_a_repository_of_another_version_is_refused_unless_it_brings_its_own(engine: Path, tmp_path: Path) -> None:
    manifest = written(AssemblyRequest(EngineSet.find(engine), DeploymentOptions()), tmp_path / "out")
    manifest.check_version("there")
    other = manifest.model_copy(update={"inflight_version": "9.9.0"})
    with raises(DeployError, "engine_incompatible", naming=("9.9.0", __version__, "--vendor")):
        other.check_version("there")
    other.model_copy(update={"vendored": True}).check_version("there")

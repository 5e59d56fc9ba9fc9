from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from build_engines.build import BuildOptions, Built, build_engine
from build_engines.errors import BuildError
from build_engines.llmapi.arguments import LlmArguments
from build_engines.manifest import Manifest, Precision, verify
from tests.build_engines.build_runs import RecordedProgress, StartedBuild, UntilExport, build, generator, names
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises


def test_an_engine_says_what_it_is_and_needs_no_checkpoint(engine: Path, checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    manifest = verify(engine, hashes=True)
    assert names(engine) == sorted([*manifest.files, "engine.json"])
    assert {
        "openvino_model.xml",
        "openvino_model.bin",
        "tokenizer.json",
        "chat_template.jinja",
    } <= manifest.files.keys()
    assert manifest.architecture == "LlamaForCausalLM"
    assert (manifest.precision, manifest.kv_cache_precision) == ("fp32", "f32")
    assert manifest.properties == {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    assert (manifest.layers, manifest.kv_heads, manifest.head_dim) == (2, 2, 16)
    assert (manifest.vocab_size, manifest.max_seq_len) == (1536, 2048)
    assert (manifest.end_ids, manifest.pad_id, manifest.bos_id) == ([1], 0, 2)
    assert manifest.versions.keys() >= {"inflight", "openvino", "optimum-intel", "transformers"}


@pytest.mark.slow  # a quick one is built with 4 bits by force
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_integer_weights_are_smaller_and_generate(
    tmp_path: Path, checkpoint: Path, engine: Path, precision: Precision
) -> None:
    """The trial run generates; the tiny Llama's matrices have rows of 64 and of 160."""
    built = build_engine(str(checkpoint), tmp_path / "small", BuildOptions(precision=precision))
    exact = Manifest.read(engine).files["openvino_model.bin"].bytes
    # fp32 has 32 bits a weight; embeddings stay at 8 bits, and scales take some.
    assert built.manifest.files["openvino_model.bin"].bytes < exact / 3
    assert (generator(built).precision, generator(built).kv_cache_precision) == (precision, "u8")


@pytest.mark.slow
def test_a_checkpoint_without_a_pad_token_makes_an_engine_without_one(tiny_engine: TinyEngine) -> None:
    assert Manifest.read(tiny_engine("gpt2")).pad_id is None


def test_an_unchanged_build_is_recognised_wherever_the_checkpoint_lies(engine: Path, checkpoint: Path) -> None:
    before = (engine / "engine.json").read_bytes()
    assert not build(checkpoint, engine, UntilExport()).fresh
    assert (engine / "engine.json").read_bytes() == before
    assert names(engine.parent) == ["checkpoint", "engine"]


def change_weights(checkpoint: Path, engine: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.norm.weight"] *= 2
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})


def change_template(checkpoint: Path, engine: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}")


def change_generation_config(checkpoint: Path, engine: Path) -> None:
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [1, 4]}')


def change_tokenizer(checkpoint: Path, engine: Path) -> None:
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"].pop()
    path.write_text(json.dumps(tokenizer))


def change_special_tokens(checkpoint: Path, engine: Path) -> None:
    path = checkpoint / "special_tokens_map.json"
    path.write_text(json.dumps({"additional_special_tokens": ["<new>"]}))


def change_versions(checkpoint: Path, engine: Path) -> None:
    manifest = Manifest.read(engine)
    manifest.model_copy(update={"versions": manifest.versions | {"openvino": "2020.1"}}).write(engine)


def damage_the_engine(checkpoint: Path, engine: Path) -> None:
    (engine / "openvino_model.bin").write_bytes(b"")


CHANGES = [
    change_weights,
    change_tokenizer,
    change_special_tokens,
    change_template,
    change_generation_config,
    change_versions,
    damage_the_engine,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_build_begins_anew_and_the_old_engine_stays_until_it_is_whole(
    engine: Path, checkpoint: Path, change: Callable[[Path, Path], None]
) -> None:
    change(checkpoint, engine)
    before = {path.name: path.read_bytes() for path in engine.iterdir()}
    heard = UntilExport()
    with pytest.raises(StartedBuild):
        build(checkpoint, engine, heard)
    assert {path.name: path.read_bytes() for path in engine.iterdir()} == before
    assert names(engine.parent) == ["checkpoint", "engine"]
    reported = any("openvino_model.bin has 0 bytes" in line for line in heard.sentences)
    assert reported == (change is damage_the_engine)


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(precision="bf16", name="tiny-llama"),
        BuildOptions(precision="fp32", kv_precision="bf16", name="tiny-llama"),
        BuildOptions(precision="fp32", name="other"),
        BuildOptions(precision="fp32", name="tiny-llama", max_seq_len=512),
    ],
)
def test_other_options_replace_an_engine_only_by_force(engine: Path, checkpoint: Path, options: BuildOptions) -> None:
    with raises(BuildError, "output_exists", naming="--force"):
        build_engine(str(checkpoint), engine, options, progress=UntilExport())
    with pytest.raises(StartedBuild):
        build_engine(str(checkpoint), engine, options, progress=UntilExport(), force=True)


def test_force_replaces_the_engine_as_a_whole(
    engine: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [1, 4]}')
    (checkpoint / "additional_chat_templates").mkdir()
    (checkpoint / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (engine / "stale").write_text("")
    exact = Manifest.read(engine).files["openvino_model.bin"].bytes
    options = BuildOptions(precision="int4", max_seq_len=512)
    built = build_engine(str(checkpoint), engine, options, force=True)
    assert built.manifest.files["openvino_model.bin"].bytes < exact / 3
    assert built.fresh
    assert verify(engine, hashes=True) == built.manifest
    assert (built.manifest.max_seq_len, generator(built).end_ids) == (512, [1, 4])
    assert not (home / "intel").exists()  # where OpenVINO's telemetry keeps its client id
    assert built.manifest.name == "checkpoint"
    assert "stale" not in names(engine)
    assert {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"} <= built.manifest.files.keys()
    assert names(engine.parent) == ["checkpoint", "engine"]


class OneWaits(RecordedProgress):
    """Begins to write only when another build has reported that it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()

    def step(self, sentence: str) -> None:
        super().step(sentence)
        if "waiting" in sentence:
            self.waiting.set()
        elif sentence == "Copying the checkpoint":
            assert self.waiting.wait(120)


def test_two_builds_to_one_place_make_one_engine(tmp_path: Path, checkpoint: Path) -> None:
    """Of the target that compiles nothing: who may write is settled before any of them begins."""
    out, built, heard = tmp_path / "engine", list[Built](), OneWaits()
    options = BuildOptions("llmapi", settings=LlmArguments())

    def build_it() -> None:
        built.append(build_engine(str(checkpoint), out, options, progress=heard))

    threads = [threading.Thread(target=build_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(one.fresh for one in built) == [False, True]
    assert sum("waiting" in line for line in heard.sentences) == 1
    verify(out, hashes=True)
    assert names(tmp_path) == ["checkpoint", "engine"]


@pytest.mark.slow
def test_more_positions_than_the_model_has_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    options = BuildOptions(max_seq_len=2049, smoke_test=False)
    with raises(BuildError, "invalid_parameter", naming="2048"):
        build_engine(str(checkpoint), tmp_path / "engine", options)
    assert names(tmp_path) == ["checkpoint"]


def refusal(checkpoint: Path, out: Path) -> BuildError:
    with pytest.raises(BuildError) as caught:
        build(checkpoint, out)
    assert "\n" not in str(caught.value)
    assert names(out.parent) == ["checkpoint"]
    return caught.value


@pytest.mark.slow
def test_an_architecture_that_the_exporter_does_not_know(tmp_path: Path, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"model_type": "brand_new", "architectures": ["BrandNewForCausalLM"]}
    (checkpoint / "config.json").write_text(json.dumps(config))
    assert refusal(checkpoint, tmp_path / "engine").code == "unsupported_architecture"


@pytest.mark.slow
def test_a_garbled_tokenizer_is_found_before_converting(tmp_path: Path, checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")
    error = refusal(checkpoint, tmp_path / "engine")
    assert error.code == "not_a_checkpoint"
    assert "tokenizer" in str(error)


def test_a_disk_with_too_little_room_is_found_before_converting(tmp_path: Path, checkpoint: Path) -> None:
    # Offsets are checked against the file's size, so the parameters are claimed by a tensor without bytes.
    header = json.dumps({"big": {"dtype": "F32", "shape": [1 << 50], "data_offsets": [0, 0]}}).encode()
    (checkpoint / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    error = refusal(checkpoint, tmp_path / "engine")
    assert error.code == "disk_full"
    assert "4.5e+06 GB" in str(error)

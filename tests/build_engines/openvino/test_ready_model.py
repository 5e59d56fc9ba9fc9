"""OpenVINO models that are taken as they are, and those that can't be."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino
import pytest

from build_engines.build import BuildOptions, build_engine
from build_engines.errors import BuildError
from build_engines.manifest import Manifest
from build_engines.openvino.export import compress_weights
from tests.build_engines.build_runs import generator, names
from tests.build_engines.test_parity import draw_prompts, generate_in_flight
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises


@pytest.fixture
def model(exported_llama: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    return Path(shutil.copytree(exported_llama, tmp_path / "model"))


def compress(model: Path, precision: str) -> None:
    ir = openvino.Core().read_model(model / "openvino_model.xml")
    if precision in ("int8", "int4"):
        ir = compress_weights(ir, precision)
    (model / "small").mkdir()
    openvino.save_model(ir, model / "small" / "openvino_model.xml", compress_to_fp16=precision == "fp16")
    del ir
    for path in (model / "small").iterdir():
        path.replace(model / path.name)
    (model / "small").rmdir()


def test_an_exported_model_is_the_engine_that_a_build_makes(
    exported_llama: Path, tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    built = Manifest.read(tiny_engine("llama"))
    taken = generator(build_engine(str(exported_llama), tmp_path / "engine", BuildOptions(name=built.name)))
    same = {"source", "files", "versions", "created"}
    assert taken.model_dump(exclude=same) == built.model_dump(exclude=same)
    prompts = draw_prompts(12, built.vocab_size)
    assert generate_in_flight(tmp_path / "engine", prompts) == generate_in_flight(tiny_engine("llama"), prompts)


def test_the_files_of_an_engine_are_such_a_model_too(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    """Of a family whose config.json has other names, and whose windows and soft caps are of the graph."""
    engine = tiny_engine("gemma2")
    before = Manifest.read(engine)
    built = build_engine(str(engine), tmp_path / "engine", BuildOptions(name=before.name))
    assert generator(built).model_copy(update={"source": before.source, "created": before.created}) == (
        before.model_copy(update={"versions": built.manifest.versions, "files": built.manifest.files})
    )


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_the_precision_is_that_of_the_file(model: Path, tmp_path: Path, precision: Any) -> None:
    compress(model, precision)
    built = build_engine(str(model), tmp_path / "engine", BuildOptions())
    assert (built.manifest.precision, generator(built).kv_cache_precision) == (precision, "u8")
    with raises(BuildError, "invalid_parameter", naming=(precision, "bf16")):
        build_engine(str(model), tmp_path / "other", BuildOptions(precision="bf16"))
    assert names(tmp_path) == ["engine", "model"]


def edit_config(**changes: Any) -> Callable[[Path], object]:
    def edit(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | changes))

    return edit


def edit_xml(old: str, new: str, count: int = -1) -> Callable[[Path], object]:
    def edit(model: Path) -> None:
        path = model / "openvino_model.xml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, count))

    return edit


def write_xml(text: str) -> Callable[[Path], object]:
    return lambda model: (model / "openvino_model.xml").write_text(text)


def cut_weights(model: Path) -> None:
    os.truncate(model / "openvino_model.bin", 1000)


def link_in_a_circle(model: Path) -> None:
    (model / "openvino_model.bin").unlink()
    (model / "openvino_model.bin").symlink_to(model / "openvino_model.bin")


def without(name: str) -> Callable[[Path], object]:
    return lambda model: (model / name).unlink()


def keep_only_openvinos_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").rename(model / "openvino_tokenizer.xml")


def split(model: Path) -> None:
    (model / "openvino_model.xml").rename(model / "openvino_language_model.xml")
    (model / "openvino_model.bin").rename(model / "openvino_language_model.bin")


ENTITIES = '<!DOCTYPE net [<!ENTITY a "a"><!ENTITY b "&a;&a;&a;">]><net>&b;</net>'
EXTERNAL = '<!DOCTYPE net [<!ENTITY a SYSTEM "file:///etc/passwd">]><net>&a;</net>'
STATE = 'type="ReadValue"'
UNUSABLE: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "cut weights": (cut_weights, "checkpoint_damaged", ("openvino_model.bin", "1,000")),
    "a negative offset": (edit_xml('offset="', 'offset="-1', 1), "checkpoint_damaged", ("negative",)),
    "no weights": (without("openvino_model.bin"), "checkpoint_damaged", ("openvino_model.bin",)),
    "a circle": (link_in_a_circle, "checkpoint_damaged", ("openvino_model.bin",)),
    "no model": (without("openvino_model.xml"), "checkpoint_damaged", ("openvino_model.xml",)),
    "no XML": (write_xml("PK\3\4"), "checkpoint_damaged", ("openvino_model.xml",)),
    "another XML": (write_xml("<svg/>"), "checkpoint_damaged", ("svg",)),
    "entities": (write_xml(ENTITIES), "checkpoint_damaged", ("openvino_model.xml",)),
    "external entities": (write_xml(EXTERNAL), "checkpoint_damaged", ("openvino_model.xml",)),
    "an unknown operation": (edit_xml('type="MatMul"', 'type="Nonsense"'), "checkpoint_damaged", ("Nonsense",)),
    "no states": (edit_xml(STATE, 'type="Identity"'), "unsupported_architecture", ("openvino_model.xml",)),
    "other states": (edit_xml('"?,2,?,16"', '"?,64,3"', 1), "unsupported_architecture", ("openvino_model.xml",)),
    "another input": (edit_xml("input_ids", "inputs_embeds"), "unsupported_architecture", ("inputs_embeds",)),
    "parts": (split, "unsupported_architecture", ("openvino_language_model.xml",)),
    "another type": (edit_xml('"f32"', '"nf4"'), "unsupported_architecture", ("nf4",)),
    "another vocabulary": (edit_config(vocab_size=32000), "checkpoint_damaged", ("vocab_size", "32000", "1536")),
    "other layers": (edit_config(num_hidden_layers=32), "checkpoint_damaged", ("num_hidden_layers", "32")),
    "other heads": (edit_config(num_key_value_heads=4), "checkpoint_damaged", ("num_key_value_heads", "4")),
    "an encoder": (edit_config(architectures=["BertModel"], model_type="bert"), "unsupported_architecture", ("embed",)),
    "a seq2seq model": (edit_config(architectures=["T5ForConditionalGeneration"]), "unsupported_architecture", ()),
    "no tokenizer": (without("tokenizer.json"), "not_a_checkpoint", ("tokenizer.json",)),
    "OpenVINO's tokenizer": (keep_only_openvinos_tokenizer, "not_a_checkpoint", ("openvino_tokenizer.xml",)),
    "a garbled tokenizer": (
        lambda model: (model / "tokenizer.json").write_text("{}"),
        "checkpoint_damaged",
        ("tokenizer.json",),
    ),
}


@pytest.mark.parametrize("fault", UNUSABLE)
def test_an_unusable_model_is_one_sentence_and_leaves_nothing(model: Path, tmp_path: Path, fault: str) -> None:
    edit, code, naming = UNUSABLE[fault]
    edit(model)
    with raises(BuildError, code, naming=naming) as caught:
        build_engine(str(model), tmp_path / "engine", BuildOptions())
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["model"]


def test_weights_of_a_download_are_linked_and_those_of_a_user_copied(model: Path, tmp_path: Path) -> None:
    weights, blob = model / "openvino_model.bin", tmp_path / "blob"
    build_engine(str(model), tmp_path / "engine", BuildOptions())
    assert weights.stat().st_nlink == 1
    weights.rename(blob)
    weights.symlink_to(blob)
    build_engine(str(model), tmp_path / "engine", BuildOptions(), force=True)
    assert (tmp_path / "engine" / weights.name).samefile(blob)


def test_another_target_or_length_is_refused(model: Path, tmp_path: Path) -> None:
    with raises(BuildError, "unsupported_architecture", naming="llmapi"):
        build_engine(str(model), tmp_path / "engine", BuildOptions("llmapi"))
    with raises(BuildError, "invalid_parameter", naming=("2048", "2049")):
        build_engine(str(model), tmp_path / "engine", BuildOptions(max_seq_len=2049))
    assert names(tmp_path) == ["model"]


def test_a_checkpoint_needs_the_libraries_of_a_build(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text("import sys\nsys.modules['optimum'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "without"), *sys.path]))
    with raises(BuildError, "package_missing", naming="build"):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions())

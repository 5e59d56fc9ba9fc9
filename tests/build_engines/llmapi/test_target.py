"""An engine for the LLM API: what lies in it, what its manifest says, and what it is refused for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.build import BuildOptions, build_engine
from build_engines.errors import BuildError
from build_engines.llmapi.arguments import KvCacheArguments, LlmArguments
from build_engines.llmapi.target import model_yaml
from build_engines.manifest import Manifest, verify
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.engine.interface import EngineOptions
from tests.build_engines.build_runs import generator
from tests.fixtures.errors import raises


def built(checkpoint: Path, out: Path, arguments: LlmArguments | None = None, **options: Any) -> Manifest:
    return generator(build_engine(str(checkpoint), out, BuildOptions("llmapi", settings=arguments, **options)))


def said_by(engine: Path) -> dict[str, Any]:
    arguments: dict[str, Any] = yaml.safe_load((engine / "model.yaml").read_text())
    return arguments


def write_config(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_checkpoint_tokenizer_and_arguments_lie_side_by_side(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "notes.md").write_text("not of the checkpoint")
    (checkpoint / "consolidated.safetensors").write_bytes(b"the same weights, in another layout")
    manifest = built(checkpoint, tmp_path / "engine")
    files = {path.relative_to(tmp_path / "engine").as_posix() for path in (tmp_path / "engine").rglob("*.*")}
    assert files == {
        "engine.json",
        "model.yaml",
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        *(f"checkpoint/{path.name}" for path in checkpoint.iterdir() if path.suffix in (".json", ".jinja")),
        "checkpoint/model.safetensors",
    }
    assert files - {"engine.json"} == set(manifest.files)
    assert verify(tmp_path / "engine") == manifest


def test_weights_are_linked_and_take_no_room(checkpoint: Path, tmp_path: Path) -> None:
    built(checkpoint, tmp_path / "engine")
    ours, theirs = tmp_path / "engine/checkpoint/model.safetensors", checkpoint / "model.safetensors"
    assert os.path.samefile(ours, theirs)


def test_only_weights_are_shared_with_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """People edit configs in place, and the engine must not change under them."""
    built(checkpoint, tmp_path / "engine")
    before = (tmp_path / "engine/checkpoint/config.json").read_text()
    with (checkpoint / "config.json").open("r+") as file:
        file.write(before.replace("llama", "LLAMA"))
    assert (tmp_path / "engine/checkpoint/config.json").read_text() == before
    shared = [path.name for path in (tmp_path / "engine/checkpoint").iterdir() if path.stat().st_nlink > 1]
    assert shared == ["model.safetensors"]


def test_code_of_the_checkpoint_comes_along_when_it_is_trusted(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "modeling_own.py").write_text("ONE = 1\n")
    (checkpoint / "table.dat").write_bytes(b"which it may read")
    (checkpoint / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    with (checkpoint / "consolidated.safetensors").open("wb") as other_weights:
        other_weights.truncate(17 << 20)
    built(checkpoint, tmp_path / "plain")
    assert not (tmp_path / "plain/checkpoint/modeling_own.py").exists()
    trusting = BuildOptions("llmapi", settings=LlmArguments(trust_remote_code=True))
    assert build_engine(str(checkpoint), tmp_path / "engine", trusting).fresh
    names = {path.name for path in (tmp_path / "engine/checkpoint").iterdir()}
    assert {"modeling_own.py", "table.dat", "config.json", "model.safetensors"} <= names
    assert not names & {".gitattributes", "consolidated.safetensors"}
    assert said_by(tmp_path / "engine")["trust_remote_code"] is True
    (checkpoint / "modeling_own.py").write_text("ONE = 2\n")
    assert build_engine(str(checkpoint), tmp_path / "engine", trusting).fresh
    assert not build_engine(str(checkpoint), tmp_path / "engine", trusting).fresh


def test_weights_behind_links_are_found(checkpoint: Path, tmp_path: Path) -> None:
    """As the hub's cache has them."""
    blob = tmp_path / "blobs" / "a1b2"
    blob.parent.mkdir()
    (checkpoint / "model.safetensors").rename(blob)
    (checkpoint / "model.safetensors").symlink_to(blob)
    built(checkpoint, tmp_path / "engine")
    assert not (tmp_path / "engine/checkpoint/model.safetensors").is_symlink()


def test_where_nothing_can_be_linked_it_is_copied(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    built(checkpoint, tmp_path / "engine")
    ours, theirs = tmp_path / "engine/checkpoint/model.safetensors", checkpoint / "model.safetensors"
    assert not os.path.samefile(ours, theirs)
    assert ours.read_bytes() == theirs.read_bytes()


def test_the_manifest_says_what_the_checkpoint_says(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    cache = KvCacheArguments(enable_block_reuse=False, dtype="fp8")
    arguments = LlmArguments(tensor_parallel_size=2, max_batch_size=16, max_num_tokens=512, kv_cache_config=cache)
    manifest = built(checkpoint, tmp_path / "engine", arguments, max_seq_len=100, precision="fp16")
    assert (manifest.target, manifest.architecture) == ("llmapi", config["architectures"][0])
    assert (manifest.precision, manifest.kv_cache_precision) == ("fp16", "fp8")
    assert (manifest.layers, manifest.vocab_size) == (config["num_hidden_layers"], config["vocab_size"])
    assert manifest.max_seq_len == 100
    assert manifest.end_ids
    assert (manifest.tensor_parallel, manifest.pipeline_parallel) == (2, 1)
    assert manifest.limits is not None
    assert manifest.features is not None
    assert manifest.limits.model_dump() == {
        "max_batch_size": 16,
        "max_num_tokens": 512,
        "max_input_len": 99,
        "max_beam_width": 1,
    }
    assert (manifest.features.kv_cache_reuse, manifest.features.chunked_context) == (False, True)
    assert said_by(tmp_path / "engine")["dtype"] == "float16"


@pytest.mark.parametrize(
    ("held", "options", "dtype", "precisions"),
    [
        ("float32", {}, "bfloat16", ("bf16", "bf16")),
        ("float64", {"precision": "fp16", "settings": LlmArguments(dtype="float16")}, "float16", ("fp16", "f16")),
        ("float32", {"precision": "fp32"}, "float32", ("fp32", "f32")),
        ("float32", {"settings": LlmArguments(dtype="float16")}, "float16", ("fp16", "f16")),
        ("float16", {}, "auto", ("fp16", "f16")),
        ("bfloat16", {}, "auto", ("bf16", "bf16")),
    ],
)
def test_numbers_are_those_of_the_checkpoint_or_of_16_bits(
    checkpoint: Path, tmp_path: Path, held: str, options: dict[str, Any], dtype: str, precisions: tuple[str, str]
) -> None:
    write_config(checkpoint, torch_dtype=held)
    done = build_engine(str(checkpoint), tmp_path / "engine", BuildOptions("llmapi", **options))
    assert said_by(tmp_path / "engine")["dtype"] == dtype
    assert (generator(done).precision, generator(done).kv_cache_precision) == precisions
    assert any("computes in bfloat16" in note for note in done.notes) == (held == "float32" and not options)


def test_the_runtime_reads_what_the_build_wrote(checkpoint: Path, tmp_path: Path) -> None:
    manifest = built(checkpoint, tmp_path / "engine", LlmArguments(max_batch_size=8))
    settings = LlmApiSettings.from_options(
        EngineOptions("llmapi", str(tmp_path / "engine"), kv_cache_tokens=0, max_num_tokens=8192)
    )
    assert settings.arguments == said_by(tmp_path / "engine")
    assert settings.max_seq_len == manifest.max_seq_len
    assert settings.max_num_sequences == 8
    assert (Path(settings.checkpoint) / "config.json").is_file()
    assert settings.guides


def test_a_dry_run_says_what_a_build_writes(checkpoint: Path, tmp_path: Path) -> None:
    options = BuildOptions("llmapi", settings=LlmArguments(max_beam_width=2))
    foretold = model_yaml(checkpoint, options)
    build_engine(str(checkpoint), tmp_path / "engine", options)
    assert (tmp_path / "engine" / "model.yaml").read_text() == foretold


def test_an_unchanged_build_is_kept_and_a_changed_argument_builds_again(checkpoint: Path, tmp_path: Path) -> None:
    options = BuildOptions("llmapi")
    assert build_engine(str(checkpoint), tmp_path / "engine", options).fresh
    assert not build_engine(str(checkpoint), tmp_path / "engine", options).fresh
    other = BuildOptions("llmapi", settings=LlmArguments(max_batch_size=8))
    assert build_engine(str(checkpoint), tmp_path / "engine", other, force=True).fresh


def test_what_modelopt_quantized_stays_so(checkpoint: Path, tmp_path: Path) -> None:
    quantization = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (checkpoint / "hf_quant_config.json").write_text(json.dumps(quantization))
    manifest = built(checkpoint, tmp_path / "engine")
    assert (manifest.precision, manifest.kv_cache_precision) == ("nvfp4", "fp8")
    assert json.loads((tmp_path / "engine/checkpoint/hf_quant_config.json").read_text()) == quantization


def test_a_checkpoint_that_tells_in_its_config_alone_may_need_a_later_version(checkpoint: Path, tmp_path: Path) -> None:
    write_config(checkpoint, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})
    notes = build_engine(str(checkpoint), tmp_path / "engine", BuildOptions("llmapi")).notes
    assert any("has no hf_quant_config.json" in note for note in notes)
    (checkpoint / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    notes = build_engine(str(checkpoint), tmp_path / "other", BuildOptions("llmapi")).notes
    assert not any("hf_quant_config.json" in note for note in notes)


@pytest.mark.parametrize(
    ("quantized", "options", "messages"),
    [
        ("FP8", {"precision": "bf16"}, ("fp8", "--precision bf16")),
        (None, {"precision": "fp8"}, ("--target llmapi", "--precision fp8", "ModelOpt", "--target tensorrt-llm")),
        (None, {"precision": "int8"}, ("--target llmapi", "--precision int8")),
        (None, {"kv_precision": "u8"}, ("--target llmapi", "--kv-cache-precision u8")),
        (None, {"max_seq_len": 1 << 24}, ("max_seq_len 16777216",)),
        (
            None,
            {"max_seq_len": 64, "settings": LlmArguments(max_seq_len=32)},
            ("--max-seq-len is 64", "max_seq_len is 32"),
        ),
        (
            None,
            {"precision": "fp16", "settings": LlmArguments(dtype="bfloat16")},
            ("--precision is fp16", "dtype is bfloat16"),
        ),
    ],
)
def test_what_can_not_be_had_is_refused(
    checkpoint: Path, tmp_path: Path, quantized: str | None, options: dict[str, Any], messages: tuple[str, ...]
) -> None:
    if quantized:
        content = {"quantization": {"quant_algo": quantized}}
        (checkpoint / "hf_quant_config.json").write_text(json.dumps(content))
    with raises(BuildError, "invalid_parameter", naming=messages):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions("llmapi", **options))
    assert not (tmp_path / "engine").exists()


def test_a_model_that_generates_nothing_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    write_config(checkpoint, architectures=["BertModel"])
    with raises(BuildError, "unsupported_architecture", naming="BertModel"):
        built(checkpoint, tmp_path / "engine")

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_engines.engine_files import EngineFile, hash_file
from build_engines.errors import BuildError
from build_engines.manifest import EngineSource, Manifest, verify


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine directory that is right in all that a manifest can know."""
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    (tmp_path / "openvino_model.bin").write_bytes(bytes(1000))
    files = {
        path.name: EngineFile(sha256=hash_file(path), bytes=path.stat().st_size) for path in sorted(tmp_path.iterdir())
    }
    Manifest(
        target="openvino",
        name="demo",
        architecture="LlamaForCausalLM",
        precision="bf16",
        kv_cache_precision="u8",
        max_seq_len=2048,
        vocab_size=512,
        end_ids=[1],
        pad_id=0,
        bos_id=None,
        layers=4,
        kv_heads=4,
        head_dim=64,
        properties={"INFERENCE_PRECISION_HINT": "bf16"},
        source=EngineSource(checkpoint="demo", weights="w", tokenizer="t", chat_template=None, options="o"),
        files=files,
        versions={"inflight": "0.1.0"},
        created="2026-01-01T00:00:00+00:00",
    ).write(tmp_path)
    return tmp_path


def change(engine: Path, **fields: Any) -> None:
    path = engine / "engine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refusal(engine: Path, *, hashes: bool | None = None) -> BuildError:
    with pytest.raises(BuildError) as caught:
        verify(engine, hashes=hashes)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "", "a//x", "./x", "a/", "..", "a\\..\\x", "a\0x"])
def test_a_file_that_would_lie_elsewhere_is_refused(engine: Path, name: str) -> None:
    """However whole it is there."""
    (engine / "a").mkdir()
    for there in ("../x", "x", "a/x", "a\\..\\x"):
        (engine / there).touch()
    change(engine, files={name: {"sha256": hashlib.sha256().hexdigest(), "bytes": 0}})
    assert refusal(engine, hashes=True).code == "engine_damaged"


def test_links_stay_in_the_directory_or_in_the_cache_of_its_download(engine: Path, tmp_path: Path) -> None:
    weights, place = engine / "openvino_model.bin", tmp_path / "models--a--b" / "snapshots" / "1"
    weights.rename(engine / "elsewhere")
    weights.symlink_to("elsewhere")
    verify(engine)
    blobs = place.parent.parent / "blobs"
    blobs.mkdir(parents=True)
    (engine / "elsewhere").rename(blobs / "elsewhere")
    place.mkdir(parents=True)
    for path in engine.iterdir():
        if path.is_file() and not path.is_symlink():
            path.rename(place / path.name)
    (place / weights.name).symlink_to("../../blobs/elsewhere")
    verify(place)
    (place / "chat_template.jinja").symlink_to("/etc/passwd")
    assert refusal(place).code == "engine_damaged"


def test_what_was_written_is_read_again(engine: Path) -> None:
    manifest = verify(engine)
    assert manifest == Manifest.read(engine)
    assert manifest.end_ids == [1]
    assert manifest.files["openvino_model.bin"].bytes == 1000


@pytest.mark.parametrize(
    ("change_engine", "code", "naming"),
    [
        *(
            (lambda engine, content=content: (engine / "engine.json").write_text(content), "engine_damaged", "read")
            for content in ("", "{", "[]", "{}", '{"format": 1}', '{"format": "x"}')
        ),
        (lambda engine: change(engine, format=2, something="new"), "engine_incompatible", "format 2"),
        (lambda engine: change(engine, target="tensorrt_llm"), "engine_incompatible", "tensorrt_llm"),
        (lambda engine: (engine / "engine.json").unlink(), "engine_not_found", "no engine.json"),
        (lambda engine: engine.rename(engine.with_name("other")), "engine_not_found", "No engine directory"),
        (lambda engine: (engine / "openvino_model.bin").unlink(), "engine_damaged", "openvino_model.bin is missing"),
    ],
)
def test_what_is_no_engine_is_refused(
    engine: Path, change_engine: Callable[[Path], object], code: str, naming: str
) -> None:
    change_engine(engine)
    error = refusal(engine)
    assert error.code == code
    assert naming in str(error)


@pytest.mark.parametrize("name", ["engine.json", "openvino_model.bin"])
def test_a_file_that_the_system_can_not_read_is_one_sentence(engine: Path, name: str) -> None:
    files = Manifest.read(engine).files | {"openvino_model.bin": EngineFile(sha256="0", bytes=0)}
    Manifest.read(engine).model_copy(update={"files": files}).write(engine)
    (engine / name).unlink()
    # A file of no length whose reading fails, for every user.
    (engine / name).symlink_to("/proc/self/mem")
    error = refusal(engine)
    assert error.code == "engine_damaged"
    assert "can't be read (Input/output error)" in str(error)


@pytest.mark.parametrize("hashes", [None, False, True])
def test_another_size_is_always_found(engine: Path, hashes: bool | None) -> None:
    (engine / "openvino_model.bin").write_bytes(bytes(999))
    error = refusal(engine, hashes=hashes)
    assert error.code == "engine_damaged"
    assert "999 bytes where its manifest says 1,000" in str(error)


def test_another_content_is_found_by_its_hash(engine: Path) -> None:
    (engine / "openvino_model.bin").write_bytes(bytes(999) + b"1")
    assert "another content" in str(refusal(engine))
    assert verify(engine, hashes=False).name == "demo"


def test_contents_of_a_large_engine_are_hashed_only_when_asked_for(engine: Path) -> None:
    large = 3 << 30
    with (engine / "openvino_model.bin").open("wb") as file:
        file.truncate(large)
    manifest = Manifest.read(engine)
    files = manifest.files | {"openvino_model.bin": EngineFile(sha256="0", bytes=large)}
    manifest.model_copy(update={"files": files}).write(engine)
    assert verify(engine).name == "demo"


def test_reading_a_manifest_needs_nothing_heavy() -> None:
    script = (
        "import sys, build_engines.manifest\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'openvino', 'click') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

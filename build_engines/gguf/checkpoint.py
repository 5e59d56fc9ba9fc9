"""Makes a checkpoint of a GGUF file, which the build reads like any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from build_engines.checkpoints.checkpoint import Checkpoint
from build_engines.gguf.families import map_weights, read_gguf_config
from build_engines.gguf.header import read_gguf
from build_engines.progress import BuildProgress

_PLACE = "from-gguf"
Dtype = Literal["F32", "F16", "BF16"]
_DTYPES: dict[str, Dtype] = {"fp32": "F32", "fp16": "F16"}


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """Return the model in the file `path`, with the file as its directory and its only file of weights.

    Raises BuildError as `read_gguf` does, and `unsupported_architecture` for families, quantizations and tensors that
    can't be read.
    """
    from build_engines.gguf.weights import check_quantizations

    file = read_gguf(path)
    config = read_gguf_config(file)
    check_quantizations(file)
    parameters = sum(weight.source.elements for weight in map_weights(file) if weight.expert in (None, 0))
    return Checkpoint(path, config, (path,), parameters, ())


def gguf_bytes(checkpoint: Checkpoint, precision: str) -> int:
    """Return the bytes of the checkpoint that a build makes of a GGUF file, 0 for another."""
    return checkpoint.parameters * (4 if _dtype(precision) == "F32" else 2) if checkpoint.is_gguf else 0


@contextmanager
def unpacked(checkpoint: Checkpoint, precision: str, out: Path, progress: BuildProgress) -> Iterator[Checkpoint]:
    """Yield a checkpoint that is a directory: `checkpoint`, or what is made of a GGUF file below `out` for the time of
    the block, with the numbers of the type from which a build with `precision` starts."""
    if not checkpoint.is_gguf:
        yield checkpoint
        return
    progress.step(f"Reading the weights of {checkpoint.directory.name}")
    directory = out / _PLACE
    directory.mkdir()
    try:
        _write(checkpoint, directory, _dtype(precision), progress)
        yield replace(checkpoint, directory=directory, weights=tuple(directory.glob("*.safetensors")))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _dtype(precision: str) -> Dtype:
    return _DTYPES.get(precision, "BF16")


def _write(checkpoint: Checkpoint, directory: Path, dtype: Dtype, progress: BuildProgress) -> None:
    # Imported here, since numpy and tokenizers take a second that a command without a build doesn't have.
    from build_engines.gguf.tokenizer import end_ids, write_tokenizer
    from build_engines.gguf.weights import write_weights

    file, config = read_gguf(checkpoint.directory), checkpoint.config
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generation: dict[str, Any] = {name: config[name] for name in ("bos_token_id", "pad_token_id") if name in config}
    if ends := end_ids(file):
        generation["eos_token_id"] = ends
    (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    write_tokenizer(file, directory)
    heads = (config["num_attention_heads"], config["num_key_value_heads"])
    write_weights(file, map_weights(file), heads, directory / "model.safetensors", dtype, progress.advance)

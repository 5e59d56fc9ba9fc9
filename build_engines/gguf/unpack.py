"""Makes a checkpoint of a GGUF file, which the build reads like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build_engines.gguf.families import map_weights, read_gguf_config
from build_engines.gguf.header import read_gguf


def read_model(path: Path) -> tuple[dict[str, Any], int]:
    """Return the config.json of the model in the GGUF file `path`, and its number of parameters.

    Raises BuildError as `read_gguf` does, and `unsupported_architecture` for families, quantizations and tensors that
    can't be read.
    """
    from build_engines.gguf.weights import check_quantizations

    file = read_gguf(path)
    config = read_gguf_config(file)
    check_quantizations(file)
    return config, sum(weight.source.elements for weight in map_weights(file) if weight.expert in (None, 0))


def unpack(path: Path, directory: Path, dtype: str, on_progress: Callable[[int, int], None]) -> None:
    """Write the checkpoint in the GGUF file `path` into `directory`, with weights of `dtype` (F32, F16 or BF16).

    `on_progress(done, total)` gets numbers of weights. Raises BuildError as `read_model` does, and for a tokenizer that
    can't be made.
    """
    # Imported here, since numpy and tokenizers take a second that a command without a build doesn't have.
    from build_engines.gguf.tokenizer import end_ids, write_tokenizer
    from build_engines.gguf.weights import write_weights

    file = read_gguf(path)
    config = read_gguf_config(file)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generation: dict[str, Any] = {name: config[name] for name in ("bos_token_id", "pad_token_id") if name in config}
    if ends := end_ids(file):
        generation["eos_token_id"] = ends
    (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    write_tokenizer(file, directory)
    heads = (config["num_attention_heads"], config["num_key_value_heads"])
    write_weights(file, map_weights(file), heads, directory / "model.safetensors", dtype, on_progress)

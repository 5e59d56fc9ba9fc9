"""Adds layers that change nothing to a checkpoint: the same answers at many times the cost.

With the original as its draft model every drafted token is accepted, so the best case of speculation can be measured
without a large model.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import Checkpoint, map_read_errors, read_checkpoint
from build_engines.errors import BuildError
from build_engines.progress import BuildProgress, NoBuildProgress

INDEX = "model.safetensors.index.json"
# A layer adds to the hidden states through these projections; other families have other names.
_OUTPUTS = re.compile(r"(self_attn\.o_proj|mlp\.down_proj|attn\.c_proj|mlp\.c_proj)\.(weight|bias)$")
_LAYER = re.compile(r"^(?P<stack>.*\b(?:layers|h))\.(?P<number>\d+)\.(?P<rest>.+)$")
_COUNTS = ("num_hidden_layers", "n_layer")
_FAMILIES = "Llama, Mistral, Qwen2, Qwen3, GPT-2, Gemma 2 and Phi-3"


def pad_layers(source: Path, out: Path, layers: int, progress: BuildProgress | None = None) -> None:
    """Write the checkpoint `source` with `layers` more layers into the empty directory `out`.

    The new layers are copies of the last one with zero output projections, so they add nothing to the hidden states.
    Raises BuildError as `read_checkpoint` does, and `unsupported_architecture` if the layers have no such projections.
    """
    progress = progress or NoBuildProgress()
    checkpoint = read_checkpoint(source)
    progress.step("Copying the checkpoint")
    with map_read_errors(source):
        shutil.copytree(source, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(INDEX, ".inflight-*"))
    places = _tensor_files(checkpoint)
    count = next((key for key in _COUNTS if key in checkpoint.config), None)
    last = {} if count is None else _tensors_of_layer(checkpoint, places, checkpoint.config[count] - 1)
    if count is None or sum(bool(_OUTPUTS.search(name)) for name in last) < 2:
        raise BuildError(
            f"{source} is a {checkpoint.architecture}, which does not support added layers; choose a checkpoint "
            f"of {_FAMILIES}.",
            "unsupported_architecture",
        )
    progress.step(f"Writing {layers} layers")
    size = sum(tensor.nbytes for tensor in last.values())
    for added in range(layers):
        places |= _write_layer(out, last, checkpoint.config[count] + added)
        progress.advance((added + 1) * size, layers * size)
    _write_index(out, places)
    _write_config(out, checkpoint.config, count, layers)


def _tensor_files(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the file of each tensor."""
    from safetensors import safe_open

    places: dict[str, str] = {}
    for path in checkpoint.weights:
        with safe_open(path, "pt") as tensors:
            places |= dict.fromkeys(tensors.keys(), path.name)
    return places


def _tensors_of_layer(checkpoint: Checkpoint, places: Mapping[str, str], number: int) -> dict[str, Any]:
    from safetensors import safe_open

    tensors = {}
    for name, file in places.items():
        parts = _LAYER.match(name)
        if parts and int(parts["number"]) == number:
            with safe_open(checkpoint.directory / file, "pt") as shard:
                tensors[name] = shard.get_tensor(name)
    return tensors


def _write_layer(out: Path, like: Mapping[str, Any], number: int) -> dict[str, str]:
    """Write one layer into a separate file; return the file of each of its tensors."""
    import torch
    from safetensors.torch import save_file

    tensors = {}
    for name, tensor in like.items():
        parts = _LAYER.match(name)
        assert parts is not None
        silent = torch.zeros_like(tensor) if _OUTPUTS.search(name) else tensor
        tensors[f"{parts['stack']}.{number}.{parts['rest']}"] = silent
    file = f"model-added-{number:05}.safetensors"
    save_file(tensors, out / file, metadata={"format": "pt"})
    # save_file writes files that only their owner can read; use the permissions of the other files.
    (out / file).chmod((out / "config.json").stat().st_mode)
    return dict.fromkeys(tensors, file)


def _write_index(out: Path, places: Mapping[str, str]) -> None:
    # If this file exists, transformers ignores the index.
    if (out / "model.safetensors").is_file():
        (out / "model.safetensors").rename(out / "model-given.safetensors")
        places = {
            name: "model-given.safetensors" if file == "model.safetensors" else file for name, file in places.items()
        }
    size = sum((out / file).stat().st_size for file in set(places.values()))
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    (out / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _write_config(out: Path, config: Mapping[str, Any], count: str, layers: int) -> None:
    deeper = dict(config) | {count: config[count] + layers}
    if isinstance(kinds := config.get("layer_types"), list):
        deeper["layer_types"] = [*kinds, *[kinds[-1]] * layers]
    (out / "config.json").write_text(json.dumps(deeper, indent=2) + "\n")

"""Random weights for a config, written shard by shard."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion

_ATTENTION = (
    "q_proj",
    "k_proj",
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "qkv_proj",
    "o_proj",
    "attn.c_",
    "self.query",
    "self.key",
    "Attention.q",
    "Attention.k",
    "Wqkv",
    "query_key_value",
)
_NORMS = ("norm", ".ln_")
_IN_OUT = ("c_attn.weight", "c_proj.weight", "c_fc.weight", "experts.gate_up_proj", "experts.down_proj")


def write_weights(
    config: PretrainedConfig, kind: Any, out: Path, *, seed: int, shard_bytes: int, report: Callable[[int, int], None]
) -> None:
    """Write the weights of the model class `kind` as safetensors into `out`, with at most one shard in memory.

    The same config and seed give the same bytes. `report(done, total)` gets numbers of bytes. Several shards get
    transformers' index file.
    """
    shapes = _tensor_shapes(config, kind)
    width = torch.finfo(config.dtype).bits // 8
    shards = _plan_shards({name: math.prod(shape) * width for name, shape in shapes.items()}, shard_bytes)
    total = sum(math.prod(shape) * width for shape in shapes.values())
    done = 0
    places: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {}
        for name in names:
            tensors[name] = _random_tensor(name, shapes[name], config, seed)
            done += tensors[name].nbytes
            report(done, total)
        save_file(tensors, out / file, metadata={"format": "pt"})
        # save_file makes files readable only by the owner; use the mode of the other files.
        (out / file).chmod((out / "config.json").stat().st_mode)
        places |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _tensor_shapes(config: PretrainedConfig, kind: Any) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = kind(config)
    tied = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    # In files, each expert has its own matrices.
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, tensors).items()}


def _plan_shards(sizes: dict[str, int], limit: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    room = limit
    for name, size in sizes.items():
        if size > room and shards[-1]:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def _random_tensor(name: str, shape: tuple[int, ...], config: PretrainedConfig, seed: int) -> Any:
    """Return random values: norms of about one, small biases, and matrices that preserve the scale of activations.

    Attention weights are larger, so that the next token depends on the whole prompt. Otherwise greedy decoding would
    repeat one token, and tests would not detect a wrong position or mask.
    """
    # Seeded by name, so that a tensor doesn't depend on earlier ones.
    generator = torch.Generator().manual_seed(seed * 0x9E3779B1 + zlib.crc32(name.encode()))
    tensor = torch.empty(shape, dtype=config.dtype)
    if name == "final_logits_bias":
        return tensor.zero_()
    gain = 2.0 if any(part in name for part in _ATTENTION) else 1.0
    if any(part in name.lower() for part in _NORMS) and len(shape) == 1:
        # Gemma adds one to the stored weight.
        middle = gain - config.model_type.startswith("gemma") if name.endswith("weight") else 0.0
        if "embeddings_layernorm" in name:  # of BLOOM, whose embeddings would outweigh its layers
            return tensor.normal_(0.0, 0.02, generator=generator)
        return tensor.normal_(middle, 0.05, generator=generator)
    if len(shape) == 1:
        return tensor.normal_(0.0, 0.1, generator=generator)
    if "shared" in name:
        tensor.normal_(0.0, 0.5 / math.sqrt(shape[1]), generator=generator)
        tensor[config.pad_token_id] = 0.0  # as Marian's, whose answers begin with it
        return tensor
    if "embed" in name or "wte" in name or "wpe" in name:
        return tensor.normal_(0.0, 0.5 / math.sqrt(shape[1]), generator=generator)
    # GPT-2 stores matrices as (in, out), and so does gpt-oss of experts, all others as (out, in).
    inputs = shape[-2] if config.model_type in ("gpt2", "gpt_oss") and name.endswith(_IN_OUT) else shape[-1]
    return tensor.normal_(0.0, gain / math.sqrt(inputs), generator=generator)

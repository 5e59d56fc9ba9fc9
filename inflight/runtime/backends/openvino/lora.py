"""LoRA adapters as PEFT writes them, added to a model so that each token is computed with its own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino.opset13 as ops
from numpy.typing import NDArray

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
MASK = "adapter_mask"

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_CHANGED_MEANING = ("use_dora", "layer_replication", "use_qalora", "target_parameters", "alora_invocation_tokens")
"""Settings of PEFT with which the matrices mean something else."""

Floats = NDArray[np.float32]


class Matrices(NamedTuple):
    """What an adapter adds to a module: up [outputs, rank] times down [rank, inputs], its scale included."""

    down: Floats
    up: Floats


def read_adapter(path: Path) -> dict[str, Matrices]:
    """Return the matrices of a PEFT directory, or of its safetensors file alone, by module.

    The scale is lora_alpha / r (with rank-stabilised LoRA, lora_alpha / sqrt(r)) of adapter_config.json, or 1 without
    such a file. Raises ValueError for an adapter that can't be read, or that has more than such matrices.
    """
    weights = path / WEIGHTS_FILE if path.is_dir() else path
    try:
        tensors = _read_safetensors(weights)
        scale_of = _scales(weights.parent / CONFIG_FILE)
        modules = [name.removesuffix(_DOWN) for name in tensors if name.endswith(_DOWN)]
        others = tensors.keys() - {module + suffix for module in modules for suffix in (_DOWN, _UP)}
        if others:
            raise ValueError(f"it has {min(others)}, which is not computed; train it with LoRA matrices alone")
        matrices = {}
        for module in modules:
            name, down = module.removeprefix(_PREFIX), tensors[module + _DOWN]
            matrices[name] = Matrices(down, tensors[module + _UP] * np.float32(scale_of(name, len(down))))
            if down.ndim != 2 or matrices[name].up.ndim != 2 or len(down) != matrices[name].up.shape[1]:
                raise ValueError(f"the matrices of {name} don't fit each other")
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"the adapter {path} can't be read ({type(error).__name__}: {error})") from error
    if not matrices:
        raise ValueError(f"the adapter {path} holds no LoRA matrices (names that end in {_DOWN}); convert it with PEFT")
    return matrices


def add_adapters(model: Any, adapters: Mapping[str, Mapping[str, Matrices]], head: Any, sampled: Any) -> Floats:
    """Add adapters to a model, by their paths; return the rows of the input `MASK`, first that without an adapter.

    The mask [tokens, ranks of all adapters] switches each token's own on. `head` is the node that makes logits, which
    has the rows `sampled` only. Raises ValueError for an adapter that does not fit the model.
    """
    nodes = {each.get_friendly_name(): each for each in model.get_ordered_ops() if each.get_type_name() == "MatMul"}
    # "__module.model.layers.0.mlp.up_proj/aten::linear/MatMul", or ov_ext::linear with weights of 16 bits and less
    modules = {name.removeprefix("__module.").partition("/")[0]: node for name, node in nodes.items()}
    ranks = [max(len(each.down) for each in adapter.values()) for adapter in adapters.values()]
    ends = np.cumsum(ranks)
    mask = ops.parameter([-1, int(ends[-1])], openvino.Type.f32, name=MASK)
    mask.output(0).get_tensor().set_names({MASK})
    for name in sorted({name for adapter in adapters.values() for name in adapter}):
        node = modules.get(name)
        _add(node, name, adapters, (ends - ranks).tolist(), mask, sampled if node == head else None)
    model.add_parameters([mask])
    rows = np.zeros((len(adapters) + 1, int(ends[-1])), np.float32)
    for number, (rank, end) in enumerate(zip(ranks, ends, strict=True), start=1):
        rows[number, end - rank : end] = 1
    return rows


def _add(
    node: Any, name: str, adapters: Mapping[str, Mapping[str, Matrices]], begins: Sequence[int], mask: Any, sampled: Any
) -> None:
    ranks = mask.get_output_partial_shape(0)[1].get_length()
    if node is not None:
        inputs = node.input_value(0).get_partial_shape()[-1].get_length()
        outputs = node.get_output_partial_shape(0)[-1].get_length()
        downs, ups = np.zeros((ranks, inputs), np.float32), np.zeros((outputs, ranks), np.float32)
    for begin, (path, adapter) in zip(begins, adapters.items(), strict=True):
        if name not in adapter:
            continue
        down, up = adapter[name]
        if node is None:
            raise ValueError(f"the adapter {path} changes {name}, which the model doesn't have; give one of this model")
        if (down.shape[1], up.shape[0]) != (inputs, outputs):
            raise ValueError(
                f"the adapter {path} takes {down.shape[1]} values to {up.shape[0]} in {name}, and the model {inputs} to"
                f" {outputs}; give an adapter of this model"
            )
        downs[begin : begin + len(down)], ups[:, begin : begin + len(down)] = down, up
    switches = mask if sampled is None else ops.gather(mask, sampled, ops.constant(np.int64(0)))
    if node.get_output_partial_shape(0).rank.get_length() == 3:  # [tokens, 1, values]
        switches = ops.unsqueeze(switches, ops.constant(np.int64(1)))
    inner = ops.matmul(node.input_value(0), ops.constant(downs), False, True)
    added = ops.matmul(ops.multiply(inner, switches), ops.constant(ups), False, True)
    readers = list(node.output(0).get_target_inputs())
    total = ops.add(node, added)
    for reader in readers:
        reader.replace_source_output(total.output(0))


def _read_safetensors(path: Path) -> dict[str, Floats]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(path.stat().st_size, _MAX_HEADER_BYTES):
            raise ValueError("it is not a safetensors file")
        header = json.loads(file.read(length))
        content = file.read()
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        if info["dtype"] not in _DTYPES:
            raise ValueError(f"{name} has the type {info['dtype']}; save it as one of {', '.join(_DTYPES)}")
        begin, end = info["data_offsets"]
        values = np.frombuffer(content[begin:end], _DTYPES[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.astype(np.float32)
    return tensors


def _scales(path: Path) -> Any:
    """Return a function from a module's name and rank to its scale."""
    if not path.is_file():
        return lambda name, rank: 1.0
    config = json.loads(path.read_text(encoding="utf-8"))
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise ValueError(f"it is of the kind {kind}; train a LORA adapter")
    if used := next((name for name in _CHANGED_MEANING if config.get(name)), None):
        raise ValueError(f"its configuration sets {used}, which is not computed; train it without")
    alphas, stable = config.get("alpha_pattern") or {}, config.get("use_rslora")

    def scale(name: str, rank: int) -> float:
        matching = (value for pattern, value in alphas.items() if re.fullmatch(rf"(.*\.)?({pattern})", name))
        alpha = next(matching, config["lora_alpha"])
        return float(alpha / (math.sqrt(rank) if stable else rank))

    return scale

"""A minimal language model that OpenVINO's pipeline runs like a real one, at almost no cost.

It tests what the library does between two forward passes without an engine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
from openvino import opset13 as ops

_WIDTH = 16
"""Of the attention heads; the smallest that the CPU's paged attention supports."""


def write_dummy_model(vocabulary_size: int, directory: Path) -> None:
    """Write `openvino_model.xml`: a model with the same logits, all different, for every prompt.

    It has the inputs and the stateful attention by which the library recognizes a language model and pages its cache.
    """
    token_ids, mask, positions = (
        _input(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask", "position_ids")
    )
    beams = _input("beam_idx", [-1], np.int32)
    states = ops.convert(ops.add(token_ids, positions), "f32")
    states = ops.unsqueeze(states, _int64(1, 3))
    states = ops.multiply(states, ops.constant(np.full((1, 1, 1, _WIDTH), 1e-6, np.float32)))
    caches = [_cached(name, states, token_ids, beams) for name in ("key", "value")]
    visible = ops.unsqueeze(ops.convert(mask, "f32"), _int64(1, 2))
    attended = ops.scaled_dot_product_attention(states, *(cache.input_value(0) for cache in caches), visible)
    merged = ops.reshape(ops.transpose(attended, _int64(0, 2, 1, 3)), _int64(0, 0, -1), special_zero=True)
    nothing = ops.multiply(ops.reduce_mean(merged, _int64(2), keep_dims=True), np.float32(0))
    row = np.random.default_rng(0).uniform(-1, 1, (1, 1, vocabulary_size)).astype(np.float32)
    logits = ops.add(nothing, ops.constant(row))
    logits.output(0).set_names({"logits"})
    model = openvino.Model([ops.result(logits)], caches, [token_ids, mask, positions, beams], "blank")
    openvino.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)


def _input(name: str, shape: list[int], dtype: type[np.generic]) -> openvino.Node:
    node = ops.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node


def _int64(*numbers: int) -> openvino.Node:
    return ops.constant(np.array(numbers, dtype=np.int64))


def _cached(name: str, states: openvino.Node, token_ids: openvino.Node, beams: openvino.Node) -> openvino.Node:
    """Append `states` to those of earlier steps; the returned node stores its input."""
    batch = ops.gather(ops.shape_of(token_ids), _int64(0), ops.constant(np.int64(0)))
    empty = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, _int64(1, 0, _WIDTH)], 0))
    shape = openvino.PartialShape([-1, 1, -1, _WIDTH])
    before = openvino.opset6.read_value(empty, name, openvino.Type.f32, shape)
    before = ops.gather(before, beams, ops.constant(np.int64(0)))
    return openvino.opset6.assign(ops.concat([before, states], 2), name)

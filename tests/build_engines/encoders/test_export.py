"""The last layer of a model that scores texts, compiled with the settings of each precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
import pytest
from openvino import opset13

from build_engines.encoders.export import keep_last_layer
from build_engines.openvino.export import compress_weights

RANDOM = np.random.default_rng(0)
FIRST, LAST = (RANDOM.normal(size=size).astype(np.float32) for size in ((64, 256), (256, 2)))
BIAS = np.array([9.123, -8.321], np.float32)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("precision", "hint"), [("bf16", "bf16"), ("fp16", "f16"), ("int8", "bf16"), ("int4", "bf16")])
def test_the_last_layer_is_computed_in_f32(tmp_path: Path, precision: str, hint: str, with_bias: bool) -> None:
    texts = opset13.parameter([-1, 64], np.float32)
    hidden = opset13.tanh(opset13.matmul(texts, opset13.constant(FIRST), False, False))
    logits = opset13.matmul(hidden, opset13.constant(np.ascontiguousarray(LAST.T)), False, True)
    logits = opset13.add(logits, opset13.constant(BIAS)) if with_bias else logits
    model = openvino.Model([opset13.result(logits), opset13.result(hidden)], [texts])
    kept = keep_last_layer(model)
    if precision.startswith("int"):
        model = compress_weights(model, precision, [kept])
    openvino.save_model(model, tmp_path / "model.xml", compress_to_fp16=not precision.startswith("int"))
    compiled = openvino.Core().compile_model(tmp_path / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": hint})
    outputs = compiled(RANDOM.normal(size=(20, 64)).astype(np.float32))
    # With the engine's precision the difference is about 0.08.
    assert np.abs(outputs[0] - (outputs[1] @ LAST + (BIAS if with_bias else 0))).max() < 1e-3

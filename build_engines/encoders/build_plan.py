"""Builds a TensorRT plan from an ONNX model: `python3 build_plan.py TASK`, in the Python that has TensorRT.

That need not have inflight, so this script imports nothing of it. TASK is a JSON file: `onnx` and `plan` are the paths
of the model and of the plan to write, `inputs` and `output` the names of the model's, `profiles` the shapes that the
inputs may have (for each profile the smallest, the usual and the largest [texts, tokens]), and `tf32` says whether
operators in 32 bits may round their inputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorrt


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    builder = tensorrt.Builder(logger)
    # Each operator is computed in the type that it has in the model. From TensorRT 11 on, all networks are so.
    network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(task["onnx"]):
        for number in range(parser.num_errors):
            print(f"[E] {parser.get_error(number)}", flush=True)
        sys.exit(1)
    plan = builder.build_serialized_network(network, _config(builder, task))
    if plan is None:  # the logger said why
        sys.exit(1)
    with Path(task["plan"]).open("wb") as file:
        file.write(plan)
    _check(logger, task)


def _config(builder: Any, task: dict[str, Any]) -> Any:
    config = builder.create_builder_config()
    if not task["tf32"]:
        config.clear_flag(tensorrt.BuilderFlag.TF32)
    for smallest, usual, largest in task["profiles"]:
        profile = builder.create_optimization_profile()
        for name in task["inputs"]:
            profile.set_shape(name, smallest, usual, largest)
        if config.add_optimization_profile(profile) < 0:
            sys.exit(f"ValueError: TensorRT accepts no inputs from {smallest} to {largest}.")
    return config


def _check(logger: Any, task: dict[str, Any]) -> None:
    """Load the plan, and compare its inputs and its output with those that serving uses."""
    engine = tensorrt.Runtime(logger).deserialize_cuda_engine(Path(task["plan"]).read_bytes())
    if engine is None:
        sys.exit(1)
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    types = {name: engine.get_tensor_dtype(name) for name in names}
    expected = {**dict.fromkeys(task["inputs"], tensorrt.DataType.INT64), task["output"]: tensorrt.DataType.FLOAT}
    if types != expected:
        sys.exit(f"TypeError: The plan has the tensors {types}, not {expected}.")


if __name__ == "__main__":
    main()

"""Exports a checkpoint to ONNX, from which TensorRT builds an engine that embeds, reranks or classifies.

TensorRT computes each operator in the type that the graph has for it, so the model is converted to its precision before
the export.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer
from build_engines.encoders.export import (
    EncoderExportResult,
    EncoderExportTask,
    describe,
    example_inputs,
    graph_inputs,
    load_graph,
    smoke_test_inputs,
    write_encoder_tokenizer,
)
from build_engines.errors import invalid

ONNX_DIRECTORY = "onnx"
"""The folder of the model and its weights in the engine directory, until the plan is built."""
MODEL = "model.onnx"
OUTPUT = "output"
# The first opset with an operator for layer normalization, which TensorRT computes with sums in 32 bits.
_OPSET = 17
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class OnnxExportTask(EncoderExportTask):
    """The settings of one export; `properties` are not used."""


def export(task: OnnxExportTask, on_step: Callable[[str], None]) -> EncoderExportResult:
    """Write the model as ONNX and its tokenizer into `task.out`; call `on_step` with a line for each step.

    Raises BuildError for errors in the checkpoint, and for a precision in which its values are not finite; errors of
    the libraries propagate unchanged.
    """
    import torch

    checkpoint, out = Path(task.checkpoint), Path(task.out)
    on_step("Loading the exporter")
    tokenizer = read_fast_tokenizer(checkpoint)
    # torch can't export the other implementation in bf16.
    graph = load_graph(task, checkpoint, attention="eager")
    write_encoder_tokenizer(tokenizer, out, task.lower_case)
    graph.base.to(getattr(torch, _DTYPES[task.precision]))
    graph.head.to(torch.float32)  # layers of it may be the model's
    on_step(f"Converting {type(graph.base).__name__} to ONNX")
    inputs = graph_inputs(task, graph)
    example = example_inputs(inputs)
    with torch.no_grad():
        dimensions = graph(**example).shape[1]
    write_onnx(graph, example, out / ONNX_DIRECTORY / MODEL)
    facts = describe(graph, tokenizer, inputs, dimensions)
    if task.smoke_test:
        on_step("Testing the model")
        _smoke_test(graph, task, facts)
    return facts


def write_onnx(graph: Any, example: dict[str, Any], path: Path) -> None:
    """Write `graph` with dynamic numbers of texts and tokens; weights of more than 2 GB go into files beside it."""
    import torch

    path.parent.mkdir(exist_ok=True)
    axes = {0: "texts", 1: "tokens"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about shapes in the trace, and of torch about its other exporter
        # The other exporter needs onnxscript.
        torch.onnx.export(
            graph,
            (),
            str(path),
            kwargs=example,
            dynamo=False,
            opset_version=_OPSET,
            input_names=list(example),
            output_names=[OUTPUT],
            dynamic_axes={**dict.fromkeys(example, axes), OUTPUT: {0: "texts"}},
        )


def _smoke_test(graph: Any, task: OnnxExportTask, facts: EncoderExportResult) -> None:
    """Compute two texts as one batch in the precision of the engine, on this machine's processor."""
    import torch

    arrays = smoke_test_inputs(Path(task.out), facts)
    with torch.no_grad():
        values = graph(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    if not torch.isfinite(values).all():
        raise invalid(
            f"{task.checkpoint} computes values that are not finite with --precision {task.precision}; choose another "
            "one, such as bf16."
        )

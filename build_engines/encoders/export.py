"""Exports a checkpoint to the files of an OpenVINO engine that embeds, reranks or classifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer, write_fast_tokenizer
from build_engines.encoders.settings import DECODERS
from build_engines.errors import unsupported
from build_engines.manifest import EncoderTask, Pooling
from build_engines.openvino.export import compress_weights, load_model

_TEXTS = ("A text.", "Another text, which is longer than the first.")
_KEPT = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class EncoderExportTask:
    """The settings of one export; see `EncoderSettings`. `dense` are pairs of `Dense`'s fields.

    `properties` are the engine's, used if `smoke_test`.
    """

    checkpoint: str
    out: str
    task: EncoderTask
    precision: str
    pooling: Pooling | None
    normalize: bool
    dense: list[tuple[str, bool]]
    truncate_dim: int | None
    lower_case: bool
    properties: dict[str, Any]
    smoke_test: bool


@dataclass(frozen=True)
class EncoderExportResult:
    """The facts about the model for the manifest."""

    inputs: list[str]
    dimensions: int
    vocab_size: int
    pad_id: int | None
    padding_side: str


def export(task: EncoderExportTask, on_step: Callable[[str], None]) -> EncoderExportResult:
    """Write the model and its tokenizer into `task.out`; call `on_step` with a line for each step.

    Raises BuildError for errors in the checkpoint; errors of the libraries propagate unchanged.
    """
    import openvino

    checkpoint, out = Path(task.checkpoint), Path(task.out)
    on_step("Loading the exporter")
    tokenizer = read_fast_tokenizer(checkpoint)
    graph = load_graph(task, checkpoint)
    on_step(f"Converting {type(graph.base).__name__} to OpenVINO")
    inputs = graph_inputs(task, graph)
    model = _convert(graph, inputs)
    kept = () if task.task == "embed" or task.precision == "fp32" else (keep_last_layer(model),)
    if task.precision in ("int8", "int4"):
        on_step(f"Compressing the weights to {task.precision}")
        model = compress_weights(model, task.precision, kept)
    # Weights of 16 bits are stored as f16: it has more digits than bf16, and OpenVINO keeps larger values in f32.
    openvino.save_model(model, out / "openvino_model.xml", compress_to_fp16=task.precision in ("bf16", "fp16"))
    write_encoder_tokenizer(tokenizer, out, task.lower_case)
    facts = describe(graph, tokenizer, inputs, model.output(0).get_partial_shape()[1].get_length())
    if task.smoke_test:
        on_step("Testing the engine")
        _smoke_test(out, task.properties, facts)
    return facts


def describe(graph: Any, tokenizer: Any, inputs: list[str], dimensions: int) -> EncoderExportResult:
    return EncoderExportResult(
        inputs=inputs,
        dimensions=dimensions,
        vocab_size=graph.base.config.vocab_size,
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else graph.base.config.pad_token_id,
        padding_side=tokenizer.padding_side if graph.kind in DECODERS else "right",
    )


def load_graph(task: EncoderExportTask, checkpoint: Path, attention: str = "sdpa") -> Any:
    """Return the `EncoderGraph` of the checkpoint in fp32, with one of transformers' implementations of attention.

    Raises BuildError for errors in the checkpoint.
    """
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    from build_engines.encoders.graph import EmbeddingHead, EncoderGraph, ScoreHead

    embeds = task.task == "embed"
    try:
        model = load_model(
            AutoModel if embeds else AutoModelForSequenceClassification,
            checkpoint,
            ("pooler.",) if embeds else (),  # no embedding reads it
            dtype=torch.float32,
            attn_implementation=attention,
        )
    except (ValueError, KeyError) as error:
        raise unsupported(
            f"{checkpoint} can't be loaded by transformers ({error}); choose another checkpoint."
        ) from error
    if embeds:
        layers = [layer for place, tanh in task.dense for layer in _dense(Path(place), tanh)]
        return EncoderGraph(
            model, EmbeddingHead(task.pooling or "mean", layers, task.normalize, task.truncate_dim)
        ).eval()
    return EncoderGraph(model.base_model, ScoreHead(model)).eval()


def _dense(place: Path, tanh: bool) -> list[Any]:
    import torch
    from safetensors.torch import load_file

    weights = load_file(place / "model.safetensors")
    matrix = weights["linear.weight"]
    layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias="linear.bias" in weights)
    layer.load_state_dict({name.removeprefix("linear."): tensor.float() for name, tensor in weights.items()})
    return [layer, *[torch.nn.Tanh()] * tanh]


def graph_inputs(task: EncoderExportTask, graph: Any) -> list[str]:
    """Return the names of the graph's inputs: segments only if the model tells those of a pair apart."""
    pairs = task.task == "rerank" and getattr(graph.base.config, "type_vocab_size", 1) > 1
    return ["input_ids", "attention_mask", *["token_type_ids"] * pairs]


def example_inputs(inputs: list[str]) -> dict[str, Any]:
    """Return inputs with which the graph is traced."""
    import torch

    ids = torch.ones((2, 16), dtype=torch.int64)
    return {name: torch.zeros_like(ids) if name == "token_type_ids" else ids for name in inputs}


def _convert(graph: Any, inputs: list[str]) -> Any:
    import openvino
    import torch
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with torch.no_grad():
        model = openvino.convert_model(
            TorchScriptPythonDecoder(graph, example_input=example_inputs(inputs), trace_kwargs={"check_trace": False}),
            input=[(name, [-1, -1], openvino.Type.i64) for name in inputs],
        )
    for number, name in enumerate(inputs):
        model.input(number).get_tensor().set_names({name})
    model.output(0).get_tensor().set_names({"output"})
    model.validate_nodes_and_infer_types()
    return model


def keep_last_layer(model: Any) -> str:
    """Let the last layer stay in f32, whatever the engine's weights and properties are; return its name.

    Logits that are rounded to 8 bits would make equal scores of different ones.
    """
    import numpy
    from openvino import opset13

    output = model.get_results()[0].input_value(0).get_node()
    layer = output if output.get_type_name() == "MatMul" else output.input_value(0).get_node()
    weights = layer.input_value(1).get_node().data
    rows = weights.T if layer.get_attributes()["transpose_b"] else weights
    bias = numpy.zeros(rows.shape[1]) if output is layer else output.input_value(1).get_node().data
    # With the bias as a row, since fusing a sum into the product would drop the attribute below.
    matrix = numpy.vstack([rows, bias.reshape(1, -1)]).astype(numpy.float32)
    # As a sum of what f16 can hold, in which files store constants.
    high = matrix.astype(numpy.float16).astype(numpy.float32)
    whole = opset13.add(opset13.constant(high), opset13.constant(matrix - high))
    padded = opset13.pad(layer.input_value(0), [0, 0], [0, 1], "constant", numpy.float32(1))
    kept = opset13.matmul(padded, whole, False, False)
    kept.get_rt_info()["precise_0"] = ""
    model.get_results()[0].input(0).replace_source_output(kept.output(0))
    kept.output(0).get_tensor().set_names(output.output(0).get_tensor().get_names())
    return str(kept.get_friendly_name())


def write_encoder_tokenizer(tokenizer: Any, out: Path, lower_case: bool) -> None:
    """Write the tokenizer without truncation and padding, which are the server's."""
    from tokenizers import Tokenizer, normalizers

    write_fast_tokenizer(tokenizer, out)
    for path in out.iterdir():
        if not path.name.startswith("openvino_model") and path.name not in _KEPT:
            path.unlink()
    path = out / "tokenizer.json"
    rules = Tokenizer.from_file(str(path))
    rules.no_truncation()
    rules.no_padding()
    if lower_case:
        others = [] if rules.normalizer is None else [rules.normalizer]
        rules.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
    rules.save(str(path))


def smoke_test_inputs(out: Path, facts: EncoderExportResult) -> dict[str, Any]:
    """Return two texts as a batch of arrays."""
    import numpy
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    tokens = [tokenizer.encode(text).ids for text in _TEXTS]
    longest = max(map(len, tokens))
    arrays = {name: numpy.zeros((len(tokens), longest), numpy.int64) for name in facts.inputs}
    for row, ids in enumerate(tokens):
        place = slice(longest - len(ids), None) if facts.padding_side == "left" else slice(len(ids))
        arrays["input_ids"][row] = facts.pad_id or 0
        arrays["input_ids"][row, place] = ids
        arrays["attention_mask"][row, place] = 1
    return arrays


def _smoke_test(out: Path, properties: dict[str, Any], facts: EncoderExportResult) -> None:
    """Load the engine as in serving, and compute two texts as one batch."""
    import numpy
    import openvino

    compiled = openvino.Core().compile_model(out / "openvino_model.xml", "CPU", properties)
    values = compiled(smoke_test_inputs(out, facts))[0]
    if values.shape != (len(_TEXTS), facts.dimensions) or not numpy.isfinite(values).all():
        raise RuntimeError(f"The engine returned {values.shape} values, {json.dumps(values.tolist())[:100]}.")

"""Counts the parameters of a model, and those that a quantization changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.checkpoints.safetensors_header import check_safetensors
from build_engines.plan.shape import ModelShape

# Suffixes of buffers in weight files: masks of GPT-2, frequencies of rotary embeddings.
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".inv_freq")
_OUTPUTS = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by kind.

    TensorRT-LLM doesn't quantize `embedding` and `output` (the LM head; 0 if it is the embedding). `linear` are the
    matrices of the layers; `other` are normalizations, biases, routers and tables of positions. `channels` is the
    number of rows of all linear matrices; each has a scale in quantization by channel.
    """

    embedding: int
    output: int
    linear: int
    other: int
    channels: int

    @property
    def total(self) -> int:
        return self.embedding + self.output + self.linear + self.other


def count_parameters(shape: ModelShape) -> ParameterCounts:
    """Return the counts of the shape; the tests compare them with transformers' model classes."""
    family, hidden, inner = shape.family, shape.hidden, shape.inner
    query = shape.heads * shape.head_dim
    norm = hidden * (2 if family.centered else 1)
    qkv_bias = shape.attention_bias if family.qkv_bias is None else family.qkv_bias
    out_bias = shape.attention_bias if family.out_bias is None else family.out_bias
    small = (shape.qkv if qkv_bias else 0) + (hidden if out_bias else 0)
    normed = {"none": 0, "shared": 2, "each": shape.heads + shape.kv_heads}[family.qk_norm]
    small += normed * shape.head_dim + (shape.heads if family.sinks else 0)
    attention = hidden * shape.qkv + query * hidden
    matrices = 3 if family.gated else 2
    mlp_bias = shape.mlp_bias if family.mlp_bias is None else family.mlp_bias
    dense_layers = shape.layers - (shape.experts.layers if shape.experts else 0)
    attending, conv = shape.layers - shape.conv_layers, shape.conv_layers
    linear = attending * attention + conv * 4 * hidden * hidden + dense_layers * matrices * hidden * inner
    channels = attending * (shape.qkv + hidden) + conv * 4 * hidden + dense_layers * ((matrices - 1) * inner + hidden)
    last = (2 if family.embedding_norm else 1) if family.norms else 0
    other = attending * small + conv * shape.conv_state + (shape.layers * family.norms + last) * norm
    other += dense_layers * ((matrices - 1) * inner + hidden) if mlp_bias else 0
    if experts := shape.experts:
        inner_of_experts = experts.count * experts.inner + experts.shared_inner
        linear += experts.layers * 3 * hidden * inner_of_experts
        channels += experts.layers * (2 * inner_of_experts + (experts.count + bool(experts.shared_inner)) * hidden)
        other += experts.layers * (experts.count + bool(experts.shared_inner)) * hidden
        other += experts.layers * experts.count * (1 + 2 * experts.inner + hidden) if experts.biased else 0
    if family.positions_table is not None:
        other += (shape.positions + family.positions_table) * hidden
    other += shape.vocab if family.head_bias else 0
    output = 0 if shape.tied else shape.vocab * hidden
    return ParameterCounts(shape.vocab * hidden, output, linear, other, channels)


def count_stored_parameters(weights: list[Path], tied: bool) -> int:
    """Return the number of parameters in the headers of safetensors files, without buffers and tied output matrices.

    Raises BuildError (`checkpoint_damaged`) as `check_safetensors` does.
    """
    total = 0
    for path in weights:
        for name, elements in check_safetensors(path).items():
            if not name.endswith(_BUFFERS) and not (tied and name.endswith(_OUTPUTS)):
                total += elements
    return total


def with_total(parameters: ParameterCounts, total: int) -> ParameterCounts:
    """Return `parameters` with a sum of `total`; the layers' matrices get the difference."""
    return replace(parameters, linear=max(0, parameters.linear + total - parameters.total))

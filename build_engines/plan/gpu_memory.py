"""The memory of a TensorRT-LLM engine on each GPU. docs/plan.md derives the numbers that are measured upstream."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from build_engines.kv_cache import BLOCK, round_up_to_blocks
from build_engines.plan.footprint import Footprint
from build_engines.plan.formats import KvFormat, WeightFormat
from build_engines.plan.parameters import ParameterCounts
from build_engines.plan.shape import ModelShape
from build_engines.plan.size import GIB

OVERHEAD = int(1.4 * GIB)
"""Per GPU: 0.6 GiB that the driver keeps (nvidia-smi's total minus CUDA's: 79.65 and 79.10 GiB on an H100, 140.4 and
139.8 on an H200), 0.8 GiB for the context and its libraries (the log in TensorRT-LLM's memory.md shows 8.62 GiB in use
and explains 7.85 of them)."""

_RUNTIME_BYTES = 29
"""Bytes of runtime and decoder buffers per sequence and token of the vocabulary: in the logs of memory.md 43.29 and
180.30 MiB (256 sequences, 32,000 tokens: 5.5 and 23.1 bytes), in those of trtllm-bench 1.14 and 4.35 GiB (4,096 and
50,400)."""


@dataclass(frozen=True)
class Split:
    """The tensor parallel and pipeline parallel sizes of an engine."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline


def splits(shape: ModelShape, max_gpus: int) -> list[Split]:
    """Return all splits over at most `max_gpus` GPUs: fewest GPUs first, then the most tensor parallel.

    Tensor parallelism also splits activations ("normally has higher memory efficiency": memory.md). It must divide
    heads, inner size and KV heads evenly; TensorRT-LLM repeats KV heads if there are fewer than GPUs. Each pipeline
    stage has the same number of layers.
    """
    widths = {shape.inner} | ({shape.experts.inner} if shape.experts else set())
    possible = [
        Split(tensor, pipeline)
        for tensor in range(1, max_gpus + 1)
        if shape.heads % tensor == 0
        and (shape.kv_heads % tensor == 0 or tensor % shape.kv_heads == 0)
        and all(width % tensor == 0 for width in widths)
        for pipeline in range(1, max_gpus // tensor + 1)
        if shape.layers % pipeline == 0
    ]
    return sorted(possible, key=lambda split: (split.gpus, split.pipeline))


def footprint(
    shape: ModelShape,
    parameters: ParameterCounts,
    weights: WeightFormat,
    kv: KvFormat,
    split: Split,
    *,
    max_batch_size: int,
    max_num_tokens: int,
) -> Footprint:
    """Return the footprint of the fullest GPU."""
    return Footprint(
        weights=weights_bytes(parameters, weights, split),
        activations=activation_bytes(shape, split, max_num_tokens),
        runtime=_RUNTIME_BYTES * max_batch_size * shape.vocab,
        overhead=OVERHEAD,
        kv_token=token_bytes(shape, kv, split),
        sequence=lambda tokens: sequence_bytes(shape, kv, split, tokens),
    )


def weights_bytes(parameters: ParameterCounts, weights: WeightFormat, split: Split) -> int:
    """Return the bytes of the weights on the fullest GPU.

    All GPUs have equal shares of the layers ("each rank stores only some portion of the weights", memory.md). Tensor
    parallelism splits the output matrix, but not the embedding (`--use_parallel_embedding` is off by default); with
    pipeline stages the first has the embedding and the last the output matrix, which then is a separate matrix.
    """
    layers = weights.layers_bytes(parameters) // split.gpus
    embedding = weights.table_bytes(parameters.embedding)
    output = weights.table_bytes(parameters.output) // split.tensor
    return layers + (embedding + output if split.pipeline == 1 else max(embedding, output))


def token_bytes(shape: ModelShape, kv: KvFormat, split: Split) -> int:
    """Return the bytes of one token in the KV cache of one GPU, in layers with full attention.

    2 (key and value) x layers x KV heads x head size x bytes (Kwon et al., Efficient Memory Management for Large
    Language Model Serving with PagedAttention, SOSP 2023, section 3; with KV heads as in Ainslie et al., GQA, EMNLP
    2023).
    """
    return shape.layers // split.pipeline * _layer_bytes(shape, kv, split)


def sequence_bytes(shape: ModelShape, kv: KvFormat, split: Split, tokens: int) -> int:
    """Return the bytes of a sequence's blocks on the fullest GPU.

    A layer with a sliding window keeps the window's blocks and one more (TensorRT-LLM's `kSWAExtraBlock`), given
    `max_attention_window_size`; Jiang et al., Mistral 7B (2023), "Rolling Buffer Cache".
    """
    whole = round_up_to_blocks(tokens)
    fullest = max(
        sum(
            number * (whole if window is None else min(whole, round_up_to_blocks(window) + BLOCK))
            for window, number in stage
        )
        for stage in _stages(shape.windows, shape.layers // split.pipeline)
    )
    return fullest * _layer_bytes(shape, kv, split)


@lru_cache(maxsize=256)
def _stages(windows: tuple[int | None, ...], layers: int) -> frozenset[tuple[tuple[int | None, int], ...]]:
    """Return the layers per window size of each pipeline stage of `layers` layers, without duplicates."""
    starts = range(0, len(windows), layers)
    return frozenset(tuple(Counter(windows[first : first + layers]).items()) for first in starts)


def _layer_bytes(shape: ModelShape, kv: KvFormat, split: Split) -> int:
    return 2 * max(1, shape.kv_heads // split.tensor) * shape.head_dim * kv.number


def activation_bytes(shape: ModelShape, split: Split, max_num_tokens: int) -> int:
    """Return the bytes of the execution context: "max number of input tokens * some constant factor" (memory.md).

    The factor is an estimate of 16-bit numbers per token: 4 vectors of hidden size, queries, keys and values, and those
    of the MLP. It is fitted to upstream's logs (1134 MiB for a 7B Llama, 929 for a GPT-J, at 8192 tokens).
    """
    return 2 * max_num_tokens * (4 * shape.hidden + (shape.qkv + shape.feed_forward) // split.tensor)

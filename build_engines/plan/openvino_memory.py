"""What the embedded engine (OpenVINO GenAI on a CPU) takes of a machine's memory. Measured; the tests measure again."""

from __future__ import annotations

from build_engines.plan.footprint import BLOCK, Footprint, round_up_to_blocks
from build_engines.plan.formats import KvFormat, WeightFormat
from build_engines.plan.parameters import ParameterCounts
from build_engines.plan.shape import ModelShape
from build_engines.plan.size import MIB

OVERHEAD = 400 * MIB
"""The server's processes without a model: 190 MiB of their own at rest, 120 MiB of libraries, and what grows under
load."""

MAX_NUM_SEQUENCES = 64
MAX_NUM_TOKENS = 96
"""What model_repository/tensorrt_llm sets where `inflight serve` isn't told otherwise."""

BATCH_SIZES = (MAX_NUM_SEQUENCES, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


def footprint(
    shape: ModelShape,
    parameters: ParameterCounts,
    weights: WeightFormat,
    kv: KvFormat,
    *,
    max_num_sequences: int = MAX_NUM_SEQUENCES,
    max_num_tokens: int = MAX_NUM_TOKENS,
) -> Footprint:
    """The memory of the server's processes together."""
    each = token_bytes(shape, kv)
    return Footprint(
        weights=private_bytes(parameters, weights) + weights.table_bytes(parameters.embedding),
        activations=activation_bytes(shape, max_num_tokens),
        runtime=max_num_sequences * shape.vocab * 4,
        overhead=OVERHEAD,
        kv_token=each,
        # The paged cache keeps whole sequences, sliding windows or not.
        sequence=lambda tokens: round_up_to_blocks(tokens) * each,
        mapped=weights.checkpoint_bytes(parameters),
    )


def private_bytes(parameters: ParameterCounts, weights: WeightFormat) -> int:
    """The copy that OpenVINO makes of each matrix it multiplies by, ordered for the processor's instructions.

    The embedding is read from the mapped file. Where it is the output matrix too, it is copied as that, so that it
    counts twice.
    """
    return weights.layers_bytes(parameters) + weights.table_bytes(parameters.output or parameters.embedding)


def token_bytes(shape: ModelShape, kv: KvFormat) -> int:
    """Bytes that one token takes in the KV cache, all layers together.

    u8 has a scale and a zero point, 4 bytes each: for values by head and token, for keys by channel and block of 32
    tokens (openvinotoolkit/openvino#29023 lays a block out as [block size + 2 * sizeof(float), head size], #30166 makes
    it the default).
    """
    if kv.name == "u8":
        head = shape.head_dim + shape.head_dim * 8 // BLOCK + shape.head_dim + 8
    else:
        head = 2 * shape.head_dim * kv.number
    return shape.layers * shape.kv_heads * head


def activation_bytes(shape: ModelShape, max_num_tokens: int) -> int:
    """Logits of all tokens of a step in 32 bits, and the widest tensors of one layer in 16."""
    return max_num_tokens * (4 * shape.vocab + 2 * (4 * shape.hidden + shape.qkv + shape.feed_forward))

"""The memory of the embedded engine (OpenVINO on a CPU). Measured; the tests measure it again."""

from __future__ import annotations

from build_engines.kv_cache import round_up_to_blocks, token_bytes
from build_engines.plan.footprint import Footprint
from build_engines.plan.formats import KvFormat, WeightFormat
from build_engines.plan.parameters import ParameterCounts
from build_engines.plan.shape import ModelShape
from build_engines.plan.size import MIB

OVERHEAD = 400 * MIB
"""The server's processes without a model: 190 MiB of private memory when idle, 120 MiB of libraries, and growth under
load."""

MAX_NUM_SEQUENCES = 64
MAX_NUM_TOKENS = 256
"""The defaults of `inflight serve` in model_repository/tensorrt_llm."""

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
    """Return the footprint of all processes of the server."""
    per_token = token_bytes(shape, kv.name)
    return Footprint(
        weights=private_bytes(parameters, weights) + weights.table_bytes(parameters.embedding),
        activations=activation_bytes(shape, max_num_tokens),
        runtime=2 * max_num_sequences * shape.vocab * 4,
        overhead=OVERHEAD,
        kv_token=per_token,
        # The paged cache keeps whole sequences, sliding windows or not.
        sequence=lambda tokens: round_up_to_blocks(tokens) * per_token,
        mapped=weights.checkpoint_bytes(parameters),
    )


def private_bytes(parameters: ParameterCounts, weights: WeightFormat) -> int:
    """Return the bytes of OpenVINO's copies of matrices, which it reorders for the processor's instructions.

    The embedding is read from the mapped file. An embedding that is also the output matrix is copied too, so it counts
    twice.
    """
    return weights.layers_bytes(parameters) + weights.table_bytes(parameters.output or parameters.embedding)


def activation_bytes(shape: ModelShape, max_num_tokens: int) -> int:
    """Return the bytes of a step: the widest tensors of one layer in 32 bits. Logits are those of sampled tokens."""
    return max_num_tokens * 4 * (4 * shape.hidden + shape.qkv + shape.feed_forward)

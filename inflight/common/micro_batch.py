"""The default size of an encoder's micro-batch, for the server and for the plan of its memory."""

from __future__ import annotations

import os

_TOKENS_PER_THREAD = 256
"""With more, throughput does not grow, and urgent texts wait for longer: docs/encoders.md has the figures."""
_TOKENS_ON_GPU = 8192
"""As TensorRT-LLM's own batcher of encoders (max_num_tokens in llm_args.py)."""


def default_batch_tokens(threads: int, target: str = "openvino") -> int:
    """Return the padded tokens for so many threads of the processor, 0 for one on each core; or those for a GPU."""
    if target != "openvino":
        return _TOKENS_ON_GPU
    return _TOKENS_PER_THREAD * (threads or len(os.sched_getaffinity(0)))

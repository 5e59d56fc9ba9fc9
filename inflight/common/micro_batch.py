"""The default size of an encoder's micro-batch, for the server and for the plan of its memory."""

from __future__ import annotations

import os

_TOKENS_PER_THREAD = 256
"""With more, throughput does not grow, and urgent texts wait for longer: docs/encoders.md has the figures."""
_TOKENS_OF_CLIPS = 2 * 1500
"""Of two clips: four take 4% less processor time each, eight 8%, and a short clip waits for so much longer."""
_TOKENS_ON_GPU = 8192
"""As TensorRT-LLM's own batcher of encoders (max_num_tokens in llm_args.py)."""


def default_batch_tokens(threads: int, target: str = "openvino", of_clips: bool = False) -> int:
    """Return the padded tokens for so many threads of the processor, 0 for one on each core; or those for a GPU, or
    for clips of speech, whose tokens are the positions of the model's encoder."""
    if of_clips:
        return _TOKENS_OF_CLIPS
    if target != "openvino":
        return _TOKENS_ON_GPU
    return _TOKENS_PER_THREAD * (threads or len(os.sched_getaffinity(0)))

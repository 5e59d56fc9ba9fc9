"""The default size of an encoder's micro-batch, for the server and for the plan of its memory."""

from __future__ import annotations

import os

_TOKENS_PER_THREAD = 256
"""With more, throughput does not grow, and urgent texts wait for longer: docs/encoders.md has the figures."""


def default_batch_tokens(threads: int) -> int:
    """Return the padded tokens for so many threads of the processor; 0 threads mean one for each core."""
    return _TOKENS_PER_THREAD * (threads or len(os.sched_getaffinity(0)))

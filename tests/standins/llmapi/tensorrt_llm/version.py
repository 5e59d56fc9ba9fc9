"""A stand-in for NVIDIA's tensorrt_llm.version."""

import os

__version__ = os.environ.get("STANDIN_TENSORRT_LLM_VERSION", "1.2.1")
CHECKS_HEALTH = not __version__.startswith("1.2")
"""Later versions look after their processes, put errors into results, and have no C++ sampler any more."""
ENCODES = CHECKS_HEALTH
"""Later versions can load an encoder, and encode texts with it."""

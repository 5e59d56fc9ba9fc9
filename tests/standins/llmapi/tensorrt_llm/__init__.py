"""A stand-in for NVIDIA's tensorrt_llm: its LLM API's names and manners, and predictable tokens.

TensorRT-LLM can't be installed where the tests run. This package has the public names, signatures, refusals and asyncio
manners of what the adapter uses, after upstream's sources (upstream.json beside this package says which), and no
model: answers are the prompt's tokens over and over. Only encoders compute (see `llmapi/encoder.py`). A file
`standin.json` in the checkpoint asks for delays and failures (see `worker.py` and `llmapi/llm.py`).
STANDIN_TENSORRT_LLM_VERSION says which version it behaves as.
"""

from .llmapi.llm import LLM
from .sampling_params import SamplingParams
from .version import __version__

__all__ = ["LLM", "SamplingParams", "__version__"]

"""A stand-in for NVIDIA's tensorrt_llm.llmapi."""

from ..executor import LoRARequest, RequestError
from ..sampling_params import GuidedDecodingParams, SamplingParams
from .llm import LLM, RequestOutput
from .llm_args import KvCacheConfig, TorchLlmArgs

__all__ = [
    "LLM",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LoRARequest",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "TorchLlmArgs",
]

"""A stand-in for servers with NVIDIA's own model repositories: KServe v2 over gRPC and HTTP, and no model behind it.

It has the tensors of upstream's `ensemble` and `tensorrt_llm_bls` (tests/data/tensorrt_llm_triton.json) and of its
`llmapi` model (triton_backend/all_models/llmapi/tensorrt_llm at 0a710573 and 044a90d2 of NVIDIA/TensorRT-LLM), and
refuses what does not fit them in Triton's words. An answer is its prompt's tokens over and over, one a step, as the
fake engine's is, so that the same calls can be compared. It was written from upstream's sources; neither TensorRT-LLM
nor its models were run for it. Sampling, penalties, guides and LoRA are taken and change nothing.
"""

from tests.standins.kserve.server import StandInServer

__all__ = ["StandInServer"]

"""Known models: what their published config.json says of sizes, and what others have published of their memory.

`SHAPES` are excerpts of the config.json files on the Hugging Face hub. `COUNTS`, `WEIGHTS` and `CACHES` are numbers in
print, beside where they are from. What logs of vLLM, TensorRT-LLM and llama.cpp call GB or MB are GiB and MiB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from build_engines.plan.gpu_memory import Split
from build_engines.plan.size import GIB


def _decoder(
    kind: str, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, positions: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    } | more


_GEMMA2 = {"sliding_window": 4096, "tie_word_embeddings": True}
_QWEN2 = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
_QWEN3_MOE = {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536}

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "opt-13b": {
        "model_type": "opt",
        "hidden_size": 5120,
        "ffn_dim": 20480,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 5120,
        "vocab_size": 50272,
    },
    "llama-2-7b": _decoder("llama", 4096, 11008, 32, 32, 32, 32000, 4096),
    "llama-2-70b": _decoder("llama", 8192, 28672, 80, 64, 8, 32000, 4096),
    "llama-3-8b": _decoder("llama", 4096, 14336, 32, 32, 8, 128256, 8192),
    "llama-3-70b": _decoder("llama", 8192, 28672, 80, 64, 8, 128256, 8192),
    "llama-3.1-8b": _decoder("llama", 4096, 14336, 32, 32, 8, 128256, 131072),
    "llama-3.1-70b": _decoder("llama", 8192, 28672, 80, 64, 8, 128256, 131072),
    "llama-3.1-405b": _decoder("llama", 16384, 53248, 126, 128, 8, 128256, 131072),
    "mistral-7b-v0.1": _decoder("mistral", 4096, 14336, 32, 32, 8, 32000, 32768, sliding_window=4096),
    "mixtral-8x7b": _decoder("mixtral", 4096, 14336, 32, 32, 8, 32000, 32768, num_local_experts=8, sliding_window=None),
    "qwen2.5-0.5b": _decoder("qwen2", 896, 4864, 24, 14, 2, 151936, 32768, **_QWEN2 | {"tie_word_embeddings": True}),
    "qwen2.5-7b": _decoder("qwen2", 3584, 18944, 28, 28, 4, 152064, 131072, **_QWEN2),
    "qwen3-235b-a22b": _decoder("qwen3_moe", 4096, 12288, 94, 64, 4, 151936, 40960, **_QWEN3_MOE),
    "gemma-2-2b": _decoder("gemma2", 2304, 9216, 26, 8, 4, 256000, 8192, head_dim=256, **_GEMMA2),
    "gemma-2-9b": _decoder("gemma2", 3584, 14336, 42, 16, 8, 256000, 8192, head_dim=256, **_GEMMA2),
    "gemma-2-27b": _decoder("gemma2", 4608, 36864, 46, 32, 16, 256000, 8192, head_dim=128, **_GEMMA2),
    "bloom": {
        "model_type": "bloom",
        "n_embed": 14336,
        "n_layer": 70,
        "num_attention_heads": 112,
        "n_inner": None,
        "seq_length": 2048,
        "vocab_size": 250880,
    },
    "falcon-7b": {
        "model_type": "falcon",
        "alibi": False,
        "bias": False,
        "hidden_size": 4544,
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_attention_heads": 71,
        "num_hidden_layers": 32,
        "parallel_attn": True,
        "vocab_size": 65024,
    },
    "phi-3-mini": _decoder("phi3", 3072, 8192, 32, 32, 32, 32064, 4096, sliding_window=2047),
}


class Count(NamedTuple):
    """A number of parameters; `part` is "all" or "layers" (all but embedding and output)."""

    model: str
    part: str
    parameters: float
    source: str


COUNTS = [
    Count(
        "gpt2", "all", 124e6, "openai-community/gpt2, model card: the smallest version of GPT-2, with 124M parameters"
    ),
    Count("llama-2-7b", "all", 6_738_415_616, "Raschka, Finetuning LLMs with LoRA (Lightning AI, 2023): 6,738,415,616"),
    Count(
        "llama-3.1-8b",
        "all",
        16_060_522_496 / 2,
        "Hugging Face docs, Model repository files: total_size of a Llama 3.1 8B",
    ),
    Count("llama-3.1-405b", "all", 810e9 / 2, "Hugging Face blog, Llama 3.1: 405B in FP16 takes 810 GB"),
    Count("mistral-7b-v0.1", "all", 7.3e9, "Mistral AI, Announcing Mistral 7B: a 7.3B parameter model"),
    Count("mixtral-8x7b", "all", 46.7e9, "Mistral AI, Mixtral of experts: Mixtral has 46.7B total parameters"),
    Count("qwen2.5-0.5b", "all", 0.49e9, "Qwen/Qwen2.5-0.5B, model card: Number of Parameters: 0.49B"),
    Count("qwen2.5-0.5b", "layers", 0.36e9, "Qwen/Qwen2.5-0.5B, model card: Non-Embedding: 0.36B"),
    Count("qwen2.5-7b", "all", 7.61e9, "Qwen/Qwen2.5-7B, model card: Number of Parameters: 7.61B"),
    Count("qwen2.5-7b", "layers", 6.53e9, "Qwen/Qwen2.5-7B, model card: Non-Embedding: 6.53B"),
    Count("qwen3-235b-a22b", "all", 235e9, "Qwen/Qwen3-235B-A22B, model card: 235B in total and 22B activated"),
    Count("qwen3-235b-a22b", "layers", 234e9, "Qwen/Qwen3-235B-A22B, model card: Non-Embedding: 234B"),
    Count("gemma-2-2b", "all", 590_118_912 + 2_024_517_888, "Gemma 2 (arXiv:2408.00118), table 2"),
    Count("gemma-2-9b", "all", 917_962_752 + 8_324_201_984, "Gemma 2 (arXiv:2408.00118), table 2"),
    Count("gemma-2-9b", "layers", 8_324_201_984, "Gemma 2 (arXiv:2408.00118), table 2: non-embedding parameters"),
    Count("gemma-2-27b", "layers", 26_047_480_320, "Gemma 2 (arXiv:2408.00118), table 2: non-embedding parameters"),
    Count("bloom", "all", 176_247_271_424, "bigscience/bloom, model card: 176,247,271,424 parameters"),
    Count("bloom", "layers", 176_247_271_424 - 3_596_615_680, "the same: 3,596,615,680 embedding parameters"),
    Count("falcon-7b", "all", 7e9, "tiiuae/falcon-7b, model card: a 7B parameters causal decoder-only model"),
    Count("phi-3-mini", "all", 3.8e9, "microsoft/Phi-3-mini-4k-instruct, model card: 3.8B parameters"),
]


class Weights(NamedTuple):
    """Bytes of all weights in a format."""

    model: str
    precision: str
    size: float
    source: str


_LLAMA31 = "Hugging Face blog, Llama 3.1 (huggingface/blog, llama31.md), Inference Memory Requirements"
_VLLM_12330 = "vllm-project/vllm#12330, start-up log of Meta-Llama-3-8B"
_MEMORY_MD = "NVIDIA/TensorRT-LLM, docs/source/reference/memory.md, log of an engine with a 7B Llama's sizes in FP8"

WEIGHTS = [
    Weights("llama-3-8b", "bf16", 14.9595 * GIB, f"{_VLLM_12330}: Loading model weights took 14.9595 GB"),
    Weights("llama-3.1-8b", "bf16", 16e9, f"{_LLAMA31}: 8B, FP16, 16 GB"),
    Weights("llama-3.1-70b", "bf16", 140e9, f"{_LLAMA31}: 70B, FP16, 140 GB"),
    Weights("llama-3.1-70b", "fp8", 70e9, f"{_LLAMA31}: 70B, FP8, 70 GB"),
    Weights("llama-3.1-405b", "fp8", 405e9, f"{_LLAMA31}: 405B, FP8, 405 GB"),
    Weights("llama-2-7b", "fp8", 6695 * 2**20, f"{_MEMORY_MD}: Loaded engine size: 6695 MiB"),
    Weights("llama-2-7b", "int4_awq", 3.89e9, "TheBloke/Llama-2-7B-AWQ, file list: model.safetensors 3.89 GB"),
    Weights("llama-2-70b", "int4_awq", 36.61e9, "TheBloke/Llama-2-70B-AWQ, model card, provided files: 36.61 GB"),
    Weights("opt-13b", "fp16", 0.65 * 40e9, "PagedAttention (arXiv:2309.06180), figure 1: weights are 65% of 40 GB"),
]


class Cache(NamedTuple):
    """Bytes of the KV cache that hold so many tokens on one of the GPUs of `split`."""

    model: str
    precision: str
    tokens: float
    size: float
    source: str
    split: Split = Split()


_PERF_MD = "NVIDIA/TensorRT-LLM, docs/source/performance/perf-benchmarking.md, output of trtllm-bench build on an H200"
_RECIPE = (
    "AI-Hypercomputer/gpu-recipes, inference/a3ultra/llama-3.1-405b/trtllm-inference-gke, log of trtllm-bench build"
)
_TABLE = "dranger003/c4ai-command-r-v01-iMat.GGUF, discussion 6: table of llama.cpp's KV cache at 2048 tokens"

CACHES = [
    Cache(
        "opt-13b", "fp16", 1, 800 * 1024, "PagedAttention (arXiv:2309.06180), section 3: a single token demands 800 KB"
    ),
    Cache(
        "llama-2-7b", "fp8", 259_840, 63.44 * GIB, f"{_MEMORY_MD}: 63.44 GiB for max tokens in paged KV cache (259840)"
    ),
    Cache("llama-3-8b", "bf16", 5691 * 16, 11.12 * GIB, f"{_VLLM_12330}: 11.12 GiB, 5691 GPU blocks (of 16 tokens)"),
    Cache("llama-3.1-8b", "fp8", 8048.16 * 256, 125.75 * GIB, f"{_PERF_MD}: 125.75 GB, 8048.16 requests of 256 tokens"),
    Cache("llama-3.1-8b", "fp16", 128_000, 15.62 * GIB, f"{_LLAMA31}: 8B, 128k tokens, 15.62 GB"),
    Cache("llama-3.1-70b", "fp16", 128_000, 39.06 * GIB, f"{_LLAMA31}: 70B, 128k tokens, 39.06 GB"),
    Cache("llama-3.1-70b", "fp16", 1024, 0.313 * GIB, f"{_LLAMA31}: 70B, 1k tokens, 0.313 GB"),
    Cache(
        "llama-3.1-405b",
        "fp8",
        11_076.91 * 256,
        681.49 * GIB / 8,
        f"{_RECIPE}: 681.49 GB, 11076.91 requests of 256 tokens, on 8 GPUs",
        Split(tensor=8),
    ),
    Cache("llama-3-70b", "fp16", 2048, 640 * 2**20, f"{_TABLE}: Meta-Llama-3-70B-Instruct, 640 MiB"),
    Cache("mixtral-8x7b", "fp16", 2048, 256 * 2**20, f"{_TABLE}: Mixtral-8x7B, 256 MiB"),
    Cache(
        "qwen3-235b-a22b",
        "bf16",
        178_880,
        8.11 * GIB,
        "vllm-project/vllm#21348: Available KV cache memory: 8.11 GiB, GPU KV cache size: 178,880 tokens, on 4 GPUs",
        Split(tensor=4),
    ),
]

"""Writes GGUF files as llama.cpp's converter does, from models of transformers with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

VOCABULARY = 300
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Case:
    """A model: its family in GGUF, its config class and settings, and the metadata beside the usual."""

    family: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, float | int | str] = field(default_factory=dict)
    tensors: dict[str, list[float]] = field(default_factory=dict)


CASES = {
    "llama": Case("llama", "LlamaConfig"),
    "tied, with biases": Case("llama", "LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True}),
    "mistral": Case("llama", "LlamaConfig", {"head_dim": 32}),
    "linear positions": Case(
        "llama",
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "yarn": Case(
        "qwen2",
        "Qwen2Config",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10_000.0,
                "original_max_position_embeddings": 128,
            }
        },
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128},
    ),
    "llama 3": Case(
        "llama",
        "LlamaConfig",
        {
            "max_position_embeddings": 131_072,
            "rope_parameters": {**_LLAMA3, "rope_theta": 500_000.0, "original_max_position_embeddings": 8192},
        },
        {"rope.freq_base": 500_000.0},
        # What llama.cpp's converter writes for these settings.
        {"rope_freqs.weight": [1.0, 1.0, 1.0, 1.0, 2.69453001, 8.0, 8.0, 8.0]},
    ),
    "qwen2": Case("qwen2", "Qwen2Config"),
    "qwen3": Case("qwen3", "Qwen3Config", {"head_dim": 32}),
    "qwen3 with experts": Case(
        "qwen3moe",
        "Qwen3MoeConfig",
        {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        | {"norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 48},
    ),
    "gemma 2": Case("gemma2", "Gemma2Config", _GEMMA, {"attention.sliding_window": 16}),
    "gemma 3": Case(
        "gemma3",
        "Gemma3TextConfig",
        _GEMMA,
        {"attention.sliding_window": 16, "rope.freq_base": 1_000_000.0},
    ),
    "phi 3": Case("phi3", "Phi3Config", {"sliding_window": None}),
    "phi 4 mini": Case(
        "phi3",
        "Phi3Config",
        {"sliding_window": None, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 128}
        | {"rope_parameters": {**_LONGROPE, "rope_theta": 10_000.0}},
        {"rope.dimension_count": 8, "rope.scaling.original_context_length": 128},
        {"rope_factors_long.weight": _LONGROPE["long_factor"], "rope_factors_short.weight": _LONGROPE["short_factor"]},
    ),
    "granite": Case(
        "granite",
        "GraniteConfig",
        {"attention_multiplier": 0.1, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.0},
        {"attention.scale": 0.1, "embedding_scale": 3.0, "residual_scale": 0.7, "logit_scale": 2.0},
    ),
    "olmo 2": Case("olmo2", "Olmo2Config"),
    "smollm3": Case("smollm3", "SmolLM3Config"),
}


def make_model(case: Case) -> PreTrainedModel:
    """Return a model with random weights, which no two parts share."""
    torch.manual_seed(0)
    config: PretrainedConfig = getattr(transformers, case.kind)(**(SIZES | case.settings))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    return model


def write_model(case: Case, model: PreTrainedModel, out: Path) -> Path:
    """Write the GGUF file of `model`."""
    writer = gguf.GGUFWriter(out, case.family)
    config = model.config.get_text_config()
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    usual: dict[str, float | int | str] = {
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if case.family == "smollm3":
        usual["rope.freq_base"] = config.rope_parameters["rope_theta"]
    for key, value in (usual | case.metadata).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{case.family}.{key}", value)  # type: ignore[operator]
    add_vocabulary(writer)
    names = gguf.get_tensor_name_map(_arch(case.family), config.num_hidden_layers)
    for name, numbers in case.tensors.items():
        writer.add_tensor(name, torch.tensor(numbers).numpy())
    for name, tensor in _merged(model.state_dict()).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        wanted = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert wanted is not None, name
        writer.add_tensor(wanted, _as_llama_cpp(case.family, name, tensor, heads, kv_heads).numpy())
    _finish(writer)
    return out


def write_vocabulary(out: Path, add: Callable[[gguf.GGUFWriter], None]) -> Path:
    """Write a file without tensors, with what `add` writes as its vocabulary."""
    writer = gguf.GGUFWriter(out, "llama")
    add(writer)
    _finish(writer)
    return out


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Add a byte-level vocabulary whose words are single letters, with three special tokens."""
    letters = [chr(number) for number in range(0x21, 0x7F)]
    tokens = ["<unk>", "<s>", "</s>", *letters, "ab"]
    tokens += [f"unused {number}" for number in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}</s>{% endfor %}")


def _arch(family: str) -> Any:
    return next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family)


def _merged(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with the two of transformers' joined experts apart, as llama.cpp has them."""
    apart: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            stem = name.removesuffix("gate_up_proj")
            apart |= {f"{stem}gate_proj.weight": gate.contiguous(), f"{stem}up_proj.weight": up.contiguous()}
        else:
            apart[f"{name}.weight" if name.endswith("experts.down_proj") else name] = tensor
    return apart


def _as_llama_cpp(family: str, name: str, tensor: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    if family in ("llama", "granite", "smollm3") and ("q_proj" in name or "k_proj" in name):
        count = heads if "q_proj" in name else kv_heads
        halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, -1)
        return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()
    return tensor + 1 if family.startswith("gemma") and name.endswith("norm.weight") else tensor


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

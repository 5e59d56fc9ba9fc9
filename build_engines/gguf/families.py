"""What a GGUF file's metadata and tensors are called in a checkpoint of transformers, for each family."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from build_engines.errors import BuildError, unsupported
from build_engines.gguf.header import Change, GgufFile, GgufTensor, Weight

_MAX_LAYERS = 1000
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMED_HEADS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_IN_LAYER = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
# Factors of rotary embeddings, which the config has as numbers.
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True)
class _Family:
    """`names` differ from, or add to, those of Llama; `settings` is what its config has beside the usual.

    llama.cpp's conversion reorders rows of queries and keys (`reordered`), and adds 1 to norms (`shifted_norms`), in
    some families.
    """

    architecture: str
    model_type: str
    names: Mapping[str, str] = field(default_factory=dict)
    settings: Callable[[GgufFile], dict[str, Any]] = lambda file: {}
    reordered: bool = False
    shifted_norms: bool = False


def read_gguf_config(file: GgufFile) -> dict[str, Any]:
    """Return the config.json of the model in `file`.

    Raises BuildError: `unsupported_architecture` for a family that can't be read, `checkpoint_damaged`.
    """
    family = _family(file)
    name, tensors = file.family, file.tensors
    if "token_embd.weight" not in tensors:
        raise file.damaged("it has no tensor token_embd.weight")
    heads = file.whole(f"{name}.attention.head_count", least=1)
    hidden = file.whole(f"{name}.embedding_length", least=1)
    head_dim = file.whole(f"{name}.attention.key_length", hidden // heads, least=1)
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": file.whole(f"{name}.block_count", least=1, most=_MAX_LAYERS),
        "intermediate_size": file.whole(f"{name}.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.whole(f"{name}.attention.head_count_kv", heads, least=1),
        "head_dim": head_dim,
        "max_position_embeddings": file.whole(f"{name}.context_length"),
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "rms_norm_eps": short(file.number(f"{name}.attention.layer_norm_rms_epsilon")),
        "rope_theta": short(file.number(f"{name}.rope.freq_base", 10_000.0)),
        "rope_scaling": _rope_scaling(file, head_dim),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
    }
    known = {key: value for key, value in (config | family.settings(file)).items() if value is not None}
    # Also without a value, which keeps the defaults of other models away.
    return known | {
        f"{token}_token_id": file.metadata.get(f"tokenizer.ggml.{key}_token_id") for token, key in _SPECIAL.items()
    }


_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}


def map_weights(file: GgufFile) -> list[Weight]:
    """Return the tensors of the checkpoint in the file's order.

    Raises BuildError (`unsupported_architecture`) for a tensor that models of the family don't have.
    """
    family = _family(file)
    names = {**_LAYER, **family.names}
    weights: list[Weight] = []
    for name, tensor in file.tensors.items():
        if name in _ROPE_TENSORS:
            continue
        inside, outside = _IN_LAYER.fullmatch(name), name.removesuffix(".weight")
        if inside and (part := names.get(inside[2])):
            weights.extend(_in_layer(family, f"model.layers.{inside[1]}", part, inside[3], tensor))
        elif outside in _OUTSIDE:
            change: Change = "minus_one" if family.shifted_norms and outside == "output_norm" else "none"
            weights.append(Weight(f"{_OUTSIDE[outside]}.weight", tensor.shape, tensor, change))
        else:
            raise unsupported(
                f"{file.path} has the tensor {name[:100]}, which is not known in models of the family {file.family};"
                " build from the original Hugging Face model."
            )
    return weights


def _in_layer(family: _Family, layer: str, part: str, kind: str, tensor: GgufTensor) -> list[Weight]:
    change: Change = "none"
    if family.reordered and part in ("self_attn.q_proj", "self_attn.k_proj"):
        change = "q_heads" if part == "self_attn.q_proj" else "k_heads"
    if family.shifted_norms and part.endswith("norm"):
        change = "minus_one"
    if "*" not in part:
        return [Weight(f"{layer}.{part}.{kind}", tensor.shape, tensor, change)]
    return [
        Weight(f"{layer}.{part.replace('*', str(expert))}.{kind}", tensor.shape[1:], tensor, change, expert)
        for expert in range(tensor.shape[0])
    ]


def _family(file: GgufFile) -> _Family:
    family = FAMILIES.get(file.family)
    if family is None or (file.metadata.get(f"{file.family}.expert_count") and "ffn_gate_inp" not in family.names):
        experts = "" if family is None else " with experts"
        raise unsupported(
            f"{file.path} holds a model of the family {file.family[:100]}{experts}, which can't be read from GGUF;"
            f" read are {', '.join(FAMILIES)}; build others from the original Hugging Face model."
        )
    return family


def _rope_scaling(file: GgufFile, head_dim: int) -> dict[str, Any] | None:
    name = file.family
    kind = file.metadata.get(f"{name}.rope.scaling.type", "none")
    factor = file.number(f"{name}.rope.scaling.factor", file.metadata.get(f"{name}.rope.scale_linear", 1.0))
    original = file.metadata.get(f"{name}.rope.scaling.original_context_length")
    if "rope_factors_long.weight" in file.tensors:
        return {
            "rope_type": "longrope",
            "long_factor": _factors(file, "rope_factors_long.weight"),
            "short_factor": _factors(file, "rope_factors_short.weight"),
        }
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file, head_dim)
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": short(factor), "original_max_position_embeddings": original}
    if kind == "linear" or (kind == "none" and factor > 1):
        return {"rope_type": "linear", "factor": short(factor)}
    if kind != "none":
        raise _other_rope(file, f"{name}.rope.scaling.type")
    return None


def _llama3(file: GgufFile, head_dim: int) -> dict[str, Any]:
    """Return the settings of Llama 3 from the factors that llama.cpp made of them.

    Raises BuildError (`unsupported_architecture`) if they come from others.
    """
    factors = _factors(file, "rope_freqs.weight")
    base = file.number(f"{file.family}.rope.freq_base", 10_000.0)
    if not base or len(factors) != head_dim // 2 or not all(0 < each < math.inf for each in factors):
        raise file.damaged("rope_freqs.weight or rope.freq_base is not the model's")
    factor, low, high, original = max(factors), 1.0, 4.0, 8192
    expected = []
    for index in range(head_dim // 2):
        turns = original / (2 * math.pi * base ** (2 * index / head_dim))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        expected.append(1 / ((1 - smooth) / factor + smooth))
    if not all(map(_close, factors, expected)):
        raise _other_rope(file, "rope_freqs.weight")
    return {
        "rope_type": "llama3",
        "factor": short(factor),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4)


def _factors(file: GgufFile, name: str) -> list[float]:
    from build_engines.gguf.weights import read_numbers

    if name not in file.tensors:
        raise file.damaged(f"it has no tensor {name}")
    return [short(value) for value in read_numbers(file, file.tensors[name])]


def _other_rope(file: GgufFile, what: str) -> BuildError:
    return unsupported(
        f"{file.path} scales positions in a way that can't be read from GGUF ({what}); build from the original Hugging"
        " Face model."
    )


def short(value: float) -> float:
    """Return the number with the fewest digits that is `value` in 32 bits."""
    return float(f"{value:.7g}")


def _gemma(file: GgufFile, wide: int) -> dict[str, Any]:
    """Return what both generations have; the largest model of each (of `wide` layers) scales scores in another way."""
    name = file.family
    hidden, heads = file.whole(f"{name}.embedding_length"), file.whole(f"{name}.attention.head_count")
    is_wide = file.whole(f"{name}.block_count") == wide
    return {
        "sliding_window": file.whole(f"{name}.attention.sliding_window"),
        "query_pre_attn_scalar": hidden // heads if is_wide else file.whole(f"{name}.attention.key_length"),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma2(file: GgufFile) -> dict[str, Any]:
    return _gemma(file, 46) | {
        "attn_logit_softcapping": file.number("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.number("gemma2.final_logit_softcapping", 30.0),
    }


def _gemma3(file: GgufFile) -> dict[str, Any]:
    local = short(file.number("gemma3.rope.freq_base_swa", 10_000.0))
    layers = file.whole("gemma3.block_count", most=_MAX_LAYERS)
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)]
    return _gemma(file, 62) | {
        "rope_theta": short(file.number("gemma3.rope.freq_base", 1_000_000.0)),
        "rope_local_base_freq": local,
        "layer_types": kinds,
    }


def _phi3(file: GgufFile) -> dict[str, Any]:
    head = file.whole("phi3.embedding_length") // file.whole("phi3.attention.head_count", least=1)
    rotary = file.whole("phi3.rope.dimension_count", head)
    return {
        "partial_rotary_factor": rotary / head if head else 1.0,
        "original_max_position_embeddings": file.metadata.get("phi3.rope.scaling.original_context_length"),
        "sliding_window": file.whole("phi3.attention.sliding_window", 0) or None,
    }


def _experts(file: GgufFile) -> dict[str, Any]:
    name = file.family
    return {
        "num_experts": file.whole(f"{name}.expert_count"),
        "num_experts_per_tok": file.whole(f"{name}.expert_used_count"),
        "moe_intermediate_size": file.whole(f"{name}.expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _granite(file: GgufFile) -> dict[str, Any]:
    return {
        "attention_multiplier": short(file.number("granite.attention.scale")),
        "embedding_multiplier": short(file.number("granite.embedding_scale", 1.0)),
        "residual_multiplier": short(file.number("granite.residual_scale", 1.0)),
        "logits_scaling": short(file.number("granite.logit_scale", 1.0)),
    }


_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
}

FAMILIES = {
    "llama": _Family("LlamaForCausalLM", "llama", reordered=True),
    "qwen2": _Family("Qwen2ForCausalLM", "qwen2"),
    "qwen3": _Family("Qwen3ForCausalLM", "qwen3", _NORMED_HEADS),
    "qwen3moe": _Family("Qwen3MoeForCausalLM", "qwen3_moe", _NORMED_HEADS | _EXPERTS, _experts),
    "gemma2": _Family("Gemma2ForCausalLM", "gemma2", _GEMMA, _gemma2, shifted_norms=True),
    "gemma3": _Family("Gemma3ForCausalLM", "gemma3_text", _NORMED_HEADS | _GEMMA, _gemma3, shifted_norms=True),
    "phi3": _Family("Phi3ForCausalLM", "phi3", {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, _phi3),
    "granite": _Family("GraniteForCausalLM", "granite", settings=_granite, reordered=True),
    "olmo2": _Family(
        "Olmo2ForCausalLM",
        "olmo2",
        _NORMED_HEADS
        | {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
    ),
    "smollm3": _Family("SmolLM3ForCausalLM", "smollm3", reordered=True),
}
"""The families by the name that GGUF has for them."""

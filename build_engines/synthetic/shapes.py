"""The shapes of known models, and one tiny model per architecture.

The sizes of the known models are from the published `config.json` files. The tiny models keep the special features of
their architecture, with windows small enough to matter in a short prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from build_engines.manifest import EncoderTask


@dataclass(frozen=True)
class EncoderFiles:
    """What the checkpoint of an encoder says beside its sizes: files of sentence-transformers, or its labels."""

    task: EncoderTask
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"
    max_seq_length: int = 512
    prompts: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ("LABEL_0",)


@dataclass(frozen=True)
class CheckpointShape:
    """The content of `config.json`: `model_type`, its fields, and the ids of the special tokens.

    `end_ids` end an answer (the first is the tokenizer's end token). With `adds_start`, the tokenizer puts `start_id`
    before each text, with `adds_end` the end token after it. `encoder` is None for a model that generates.
    """

    model_type: str
    fields: dict[str, Any]
    vocab_size: int
    end_ids: tuple[int, ...]
    start_id: int | None = None
    pad_id: int | None = None
    adds_start: bool = False
    adds_end: bool = False
    dtype: str = "bfloat16"
    encoder: EncoderFiles | None = None


def decoder_fields(
    layers: int, hidden: int, inner: int, heads: int, kv_heads: int, positions: int, tied: bool, **more: Any
) -> dict[str, Any]:
    """Return the fields of a decoder's config.json."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
    } | more


def _qwen2(vocabulary: int, **fields: Any) -> CheckpointShape:
    more = {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "use_sliding_window": False}
    return CheckpointShape("qwen2", fields | more, vocabulary, (151645, 151643), 151643, 151643)


def _llama3(factor: float, **fields: Any) -> CheckpointShape:
    rope = {
        "rope_type": "llama3",
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }
    more = {"rope_theta": 5e5, "rms_norm_eps": 1e-5, "rope_scaling": rope}
    return CheckpointShape("llama", fields | more, 128256, (128001, 128008, 128009), 128000, None, adds_start=True)


KNOWN: dict[str, CheckpointShape] = {
    "qwen2.5-0.5b": _qwen2(151936, **decoder_fields(24, 896, 4864, 14, 2, 32768, True)),
    "qwen2.5-1.5b": _qwen2(151936, **decoder_fields(28, 1536, 8960, 12, 2, 32768, True)),
    "qwen2.5-7b": _qwen2(152064, **decoder_fields(28, 3584, 18944, 28, 4, 32768, False)),
    "qwen3-0.6b": CheckpointShape(
        "qwen3",
        decoder_fields(28, 1024, 3072, 16, 8, 40960, True, head_dim=128, rope_theta=1e6, rms_norm_eps=1e-6),
        151936,
        (151645, 151643),
        151643,
        151643,
    ),
    "llama-3.2-1b": _llama3(32.0, **decoder_fields(16, 2048, 8192, 32, 8, 131072, True, head_dim=64)),
    "llama-3.1-8b": _llama3(8.0, **decoder_fields(32, 4096, 14336, 32, 8, 131072, False)),
    "tinyllama-1.1b": CheckpointShape(
        "llama",
        decoder_fields(22, 2048, 5632, 32, 4, 2048, False, rope_theta=1e4, rms_norm_eps=1e-5),
        32000,
        (2,),
        1,
        None,
        adds_start=True,
    ),
    "mistral-7b": CheckpointShape(
        "mistral",
        decoder_fields(32, 4096, 14336, 32, 8, 32768, False, rope_theta=1e6, rms_norm_eps=1e-5, sliding_window=None),
        32768,
        (2,),
        1,
        None,
        adds_start=True,
    ),
    "gemma-2-2b": CheckpointShape(
        "gemma2",
        decoder_fields(26, 2304, 9216, 8, 4, 8192, True, head_dim=256, query_pre_attn_scalar=256, sliding_window=4096),
        256000,
        (1, 107),
        2,
        0,
        adds_start=True,
    ),
    "phi-3-mini": CheckpointShape(
        "phi3",
        decoder_fields(32, 3072, 8192, 32, 32, 4096, False, sliding_window=2047, rms_norm_eps=1e-5)
        | {"original_max_position_embeddings": 4096},
        32064,
        (32000, 32001, 32007),
        1,
        32000,
    ),
    "gpt2": CheckpointShape(
        "gpt2",
        {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024},
        50257,
        (50256,),
        50256,
        None,
    ),
}


def _tiny(
    model_type: str, fields: dict[str, Any], *, adds_start: bool = False, start: bool = True, pad_id: int | None = 0
) -> CheckpointShape:
    return CheckpointShape(
        model_type, fields, 1536, (1,), 2 if start else None, pad_id, adds_start=adds_start, dtype="float32"
    )


def _small(layers: int = 2, tied: bool = False, **more: Any) -> dict[str, Any]:
    return decoder_fields(layers, 64, 160, 4, 2, 2048, tied, **more)


def _gemma(layers: int) -> dict[str, Any]:
    return _small(layers, tied=True, head_dim=32, query_pre_attn_scalar=32, sliding_window=256)


_OLD: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 2048}
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SMALL_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
_HYBRID: dict[str, Any] = {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}

_TINY_FIELDS: dict[str, dict[str, Any]] = {
    "afmoe": _small(4, head_dim=16, sliding_window=256, num_dense_layers=1, num_shared_experts=1, **_SMALL_EXPERTS),
    "arcee": _small(),
    "biogpt": _small(),
    "bloom": {"n_layer": 2, "hidden_size": 64, "n_head": 4},
    "codegen": _OLD | {"rotary_dim": 8},
    "cohere": _small(tied=True),
    "cohere2": _small(4, tied=True, sliding_window=256),
    "falcon": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "multi_query": True},
    "gemma": _small(tied=True, head_dim=32),
    "gemma3_text": _gemma(6),
    "glm": _small(head_dim=16, partial_rotary_factor=0.5),
    "glm4": _small(head_dim=16, partial_rotary_factor=0.5),
    "gpt_bigcode": _OLD,
    "gpt_neox": _small(),
    "gpt_oss": _small(4, head_dim=16, sliding_window=128, rope_parameters=_YARN, **_EXPERTS),
    "gptj": _OLD | {"rotary_dim": 8},
    "granite": _small(**_GRANITE),
    "granitemoe": _small(**_EXPERTS, **_GRANITE),
    "hunyuan_v1_dense": _small(head_dim=16),
    "lfm2": _small(4, tied=True, block_auto_adjust_ff_dim=False, **_HYBRID),
    "lfm2_moe": _small(4, tied=True, num_dense_layers=1, **_SMALL_EXPERTS, **_HYBRID),
    "mixtral": _small(**_EXPERTS),
    "olmo": _small(),
    "olmo2": _small(),
    "opt": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 160,
        "num_attention_heads": 4,
        "max_position_embeddings": 2048,
    },
    "persimmon": _small(),
    "phi": _small(num_key_value_heads=4),
    "qwen2_moe": _small(shared_expert_intermediate_size=48, decoder_sparse_step=1, **_SMALL_EXPERTS),
    "qwen3_moe": _small(head_dim=16, decoder_sparse_step=1, norm_topk_prob=True, **_SMALL_EXPERTS),
    "smollm3": _small(4, tied=True, no_rope_layers=[1, 1, 1, 0]),
    "stablelm": _small(partial_rotary_factor=0.25),
    "starcoder2": _small(),
}

TINY: dict[str, CheckpointShape] = {
    "tiny-llama": _tiny("llama", _small(head_dim=16), adds_start=True),
    "tiny-mistral": _tiny("mistral", _small(head_dim=16, sliding_window=None), adds_start=True),
    "tiny-mistral-window": _tiny("mistral", _small(head_dim=16, sliding_window=256), adds_start=True),
    "tiny-qwen2": _tiny("qwen2", _small(tied=True), start=False),
    "tiny-qwen3": _tiny("qwen3", _small(tied=True, head_dim=32), start=False),
    # Many models have no padding token, for example GPT-2.
    "tiny-gpt2": _tiny("gpt2", _OLD, pad_id=None),
    "tiny-gemma2": _tiny("gemma2", _gemma(4), adds_start=True),
    "tiny-phi3": _tiny("phi3", _small(sliding_window=256) | {"original_max_position_embeddings": 2048}),
    **{f"tiny-{kind}": _tiny(kind, fields) for kind, fields in _TINY_FIELDS.items()},
}

SHAPES: dict[str, CheckpointShape] = KNOWN | TINY

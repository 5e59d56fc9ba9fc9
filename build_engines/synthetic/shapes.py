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


TINY: dict[str, CheckpointShape] = {
    "tiny-llama": _tiny("llama", _small(head_dim=16), adds_start=True),
    "tiny-mistral": _tiny("mistral", _small(head_dim=16, sliding_window=None), adds_start=True),
    "tiny-qwen2": _tiny("qwen2", _small(tied=True), start=False),
    "tiny-qwen3": _tiny("qwen3", _small(tied=True, head_dim=32), start=False),
    # Many models have no padding token, for example GPT-2.
    "tiny-gpt2": _tiny("gpt2", {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 2048}, pad_id=None),
    "tiny-gemma2": _tiny(
        "gemma2",
        _small(4, tied=True, head_dim=32, query_pre_attn_scalar=32, sliding_window=256),
        adds_start=True,
    ),
    "tiny-phi3": _tiny("phi3", _small(sliding_window=256) | {"original_max_position_embeddings": 2048}),
}

SHAPES: dict[str, CheckpointShape] = KNOWN | TINY

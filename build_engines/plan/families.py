"""What the layers of each known architecture hold, as far as memory depends on it.

The facts are those of the model classes in Hugging Face transformers (src/transformers/models/<model_type>/); the tests
count the parameters of each with those classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

WindowRule = Literal["none", "all", "qwen", "alternate", "five_of_six"]


@dataclass(frozen=True)
class Family:
    """Layers of one `model_type`.

    `gated`: the feed-forward part has three matrices, not two. `norms`: normalizations of hidden size in a layer;
    with `centered` ones each has a bias too. `qk_norm`: keys and queries are normalized by head. Biases: None for what
    the config says (absent: none). `tied`: the output matrix is the embedding, where the config doesn't say. `windows`:
    which layers look back only so far.
    """

    gated: bool = True
    norms: int = 2
    centered: bool = False
    qk_norm: bool = False
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    head_bias: bool = False
    tied: bool = False
    positions_table: int | None = None
    """Rows that a table of positions has beyond those the model knows; None without such a table."""
    windows: WindowRule = "none"


_PLAIN = Family(qkv_bias=False, out_bias=False, mlp_bias=False)
_BIASED = Family(gated=False, centered=True, qkv_bias=True, out_bias=True, mlp_bias=True)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "granite": Family(),
    "mistral": replace(_PLAIN, windows="all"),
    "mixtral": replace(_PLAIN, windows="all"),
    "qwen2": replace(_PLAIN, qkv_bias=True, windows="qwen"),
    "qwen2_moe": replace(_PLAIN, qkv_bias=True, windows="qwen"),
    "qwen3": Family(mlp_bias=False, qk_norm=True, windows="qwen"),
    "qwen3_moe": Family(mlp_bias=False, qk_norm=True, windows="qwen"),
    "gemma": Family(mlp_bias=False, tied=True),
    "gemma2": Family(mlp_bias=False, norms=4, tied=True, windows="alternate"),
    "gemma3_text": Family(mlp_bias=False, norms=4, qk_norm=True, tied=True, windows="five_of_six"),
    "phi3": replace(_PLAIN, windows="all"),
    "phi": replace(_BIASED, norms=1, head_bias=True),
    "starcoder2": replace(_BIASED, tied=True, windows="all"),
    "gpt2": replace(_BIASED, tied=True, positions_table=0),
    "gptj": replace(_BIASED, norms=1, qkv_bias=False, out_bias=False, head_bias=True),
    "gpt_neox": replace(_BIASED),
    "opt": replace(_BIASED, tied=True, positions_table=2),
}

MULTI_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "minicpm3")
"""Architectures with multi-head latent attention: the cache holds a compressed vector, not keys and values by head."""

"""The layers of each known architecture, as far as memory depends on them.

The facts come from the model classes of Hugging Face transformers (src/transformers/models/<model_type>/); the tests
count the parameters of each class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from build_engines.checkpoints.config_file import ConfigFile

WindowRule = Literal["none", "all", "qwen", "alternate", "all_but_last"]
HeadNorm = Literal["none", "shared", "each"]


@dataclass(frozen=True)
class ModelFamily:
    """Layers of one `model_type`. The config overrides `name` (the class), `tied` and `positions`.

    `gated`: the MLP has three matrices, not two. `norms`: normalizations of hidden size per layer; `centered` ones have
    a bias. `qk_norm`: keys and queries are normalized per head, with weights shared by all heads or for each head.
    Biases: None means the config's value (absent: no bias). `tied`: the output matrix is the embedding. `windows`:
    which layers have a sliding window. `positions`: the longest sequence in tokens. `sinks`: each layer
    has a number per head that attention may turn to.
    """

    name: str
    gated: bool = True
    norms: int = 2
    centered: bool = False
    qk_norm: HeadNorm = "none"
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    head_bias: bool = False
    tied: bool = False
    embedding_norm: bool = False
    positions_table: int | None = None
    """Extra rows of the table of positions beyond the longest sequence; None without such a table."""
    windows: WindowRule = "none"
    positions: int | None = None
    sinks: bool = False


_PLAIN = ModelFamily("", qkv_bias=False, out_bias=False, mlp_bias=False)
_BIASED = ModelFamily("", gated=False, centered=True, qkv_bias=True, out_bias=True, mlp_bias=True)
_QWEN2 = replace(_PLAIN, qkv_bias=True, windows="qwen")
_QWEN3 = ModelFamily("", mlp_bias=False, qk_norm="shared", windows="qwen")

FAMILIES: dict[str, ModelFamily] = {
    "llama": ModelFamily("LlamaForCausalLM"),
    "granite": ModelFamily("GraniteForCausalLM"),
    "arcee": ModelFamily("ArceeForCausalLM", gated=False),
    "smollm3": ModelFamily("SmolLM3ForCausalLM", tied=True, windows="qwen"),
    "granitemoe": ModelFamily("GraniteMoeForCausalLM", mlp_bias=False),
    "olmo": ModelFamily("OlmoForCausalLM", norms=0, mlp_bias=False),
    "olmo2": ModelFamily("Olmo2ForCausalLM", mlp_bias=False, qk_norm="each"),
    "glm": ModelFamily("GlmForCausalLM", out_bias=False, mlp_bias=False),
    "glm4": ModelFamily("Glm4ForCausalLM", norms=4, out_bias=False, mlp_bias=False),
    "hunyuan_v1_dense": ModelFamily("HunYuanDenseV1ForCausalLM", mlp_bias=False, qk_norm="shared"),
    "stablelm": ModelFamily("StableLmForCausalLM", centered=True, out_bias=False, mlp_bias=False),
    "gpt_oss": ModelFamily("GptOssForCausalLM", mlp_bias=False, windows="alternate", sinks=True),
    "lfm2": replace(_PLAIN, name="Lfm2ForCausalLM", qk_norm="shared", tied=True),
    "lfm2_moe": replace(_PLAIN, name="Lfm2MoeForCausalLM", qk_norm="shared", tied=True),
    "mistral": replace(_PLAIN, name="MistralForCausalLM", windows="all"),
    "mixtral": replace(_PLAIN, name="MixtralForCausalLM", windows="all"),
    "phimoe": ModelFamily("PhiMoEForCausalLM", centered=True, mlp_bias=False, windows="all"),
    "qwen2": replace(_QWEN2, name="Qwen2ForCausalLM"),
    "qwen2_moe": replace(_QWEN2, name="Qwen2MoeForCausalLM"),
    "qwen3": replace(_QWEN3, name="Qwen3ForCausalLM"),
    "qwen3_moe": replace(_QWEN3, name="Qwen3MoeForCausalLM"),
    "gemma": ModelFamily("GemmaForCausalLM", mlp_bias=False, tied=True),
    "gemma2": ModelFamily("Gemma2ForCausalLM", mlp_bias=False, norms=4, tied=True, windows="alternate"),
    "gemma3_text": ModelFamily(
        "Gemma3ForCausalLM", mlp_bias=False, norms=4, qk_norm="shared", tied=True, windows="all_but_last"
    ),
    "phi3": replace(_PLAIN, name="Phi3ForCausalLM", windows="all"),
    "phi": replace(_BIASED, name="PhiForCausalLM", norms=1, head_bias=True),
    "cohere": ModelFamily("CohereForCausalLM", mlp_bias=False, norms=1, tied=True),
    "cohere2": ModelFamily("Cohere2ForCausalLM", mlp_bias=False, norms=1, tied=True, windows="all_but_last"),
    "nemotron": ModelFamily("NemotronForCausalLM", gated=False, centered=True),
    "starcoder2": replace(_BIASED, name="Starcoder2ForCausalLM", tied=True, windows="all"),
    "gpt2": replace(_BIASED, name="GPT2LMHeadModel", tied=True, positions_table=0),
    "gpt_bigcode": replace(_BIASED, name="GPTBigCodeForCausalLM", tied=True, positions_table=0),
    "gptj": replace(_BIASED, name="GPTJForCausalLM", norms=1, qkv_bias=False, out_bias=False, head_bias=True),
    "codegen": replace(_BIASED, name="CodeGenForCausalLM", norms=1, qkv_bias=False, out_bias=False, head_bias=True),
    "gpt_neox": replace(_BIASED, name="GPTNeoXForCausalLM"),
    "opt": replace(_BIASED, name="OPTForCausalLM", tied=True, positions_table=2),
    # These three have no limit, or none in their configs; the numbers are from transformers or the authors.
    "falcon": replace(_BIASED, name="FalconForCausalLM", tied=True, positions=2048),
    "bloom": replace(_BIASED, name="BloomForCausalLM", tied=True, embedding_norm=True, positions=2048),
    "mpt": replace(_PLAIN, name="MPTForCausalLM", gated=False, tied=True, positions=2048),
}

MULTI_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "minicpm3")
"""Architectures with multi-head latent attention: the cache holds a compressed vector, not keys and values by head."""

WITHOUT_INNER = ("gpt2", "gptj", "codegen", "gpt_bigcode", "falcon", "bloom")
"""Architectures whose MLP is four times as wide as the hidden size by default."""


def family_from_config(config: ConfigFile, kind: str) -> ModelFamily:
    """Return the family of model_type `kind`, with the config's values for its layers."""
    family = FAMILIES[kind]
    if kind == "falcon":
        return _falcon(config, family)
    if kind == "cohere" and config.flag("use_qk_norm", False):
        return replace(family, qk_norm="each")
    if kind == "stablelm":
        norms = 1 if config.flag("use_parallel_residual", False) else 2
        each: HeadNorm = "each" if config.flag("qk_layernorm", False) else "none"
        return replace(family, norms=norms, qkv_bias=config.flag("use_qkv_bias", False), qk_norm=each)
    if kind == "phimoe":
        return replace(family, head_bias=config.flag("lm_head_bias", False))
    return family


def _falcon(config: ConfigFile, family: ModelFamily) -> ModelFamily:
    """Return Falcon's family: one norm if attention and MLP are parallel, but two in the new architecture."""
    new = config.flag("new_decoder_architecture", False)
    beside = config.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    norms = beside if config.flag("parallel_attn", True) and beside < 2 else 2
    bias = config.flag("bias", False)
    return replace(family, norms=norms, qkv_bias=bias, out_bias=bias, mlp_bias=bias)

"""The shape of a model: the sizes of its parts, from config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from build_engines.checkpoints.config_file import ConfigFile
from build_engines.checkpoints.model_facts import MAX_LAYERS, POSITIONS, read_sizes
from build_engines.errors import BuildError, unsupported
from build_engines.plan.families import (
    FAMILIES,
    MULTI_LATENT,
    WITHOUT_INNER,
    ModelFamily,
    WindowRule,
    family_from_config,
)

_HYBRID = ("lfm2", "lfm2_moe")


@dataclass(frozen=True)
class Experts:
    """A mixture of `count` experts; each token uses `per_token` of them, each of size `inner`.

    `shared_inner` is the inner size of the shared expert (0: none); `layers` is the number of layers with experts.
    """

    count: int
    per_token: int
    inner: int
    shared_inner: int
    layers: int
    biased: bool = False


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. `windows` has the attention window of each layer, None for full attention.

    Of `layers`, `conv_layers` are convolutions with a state of `conv_state` numbers instead of attention.
    """

    model_type: str
    architecture: str
    family: ModelFamily
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    positions: int
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    windows: tuple[int | None, ...]
    experts: Experts | None
    conv_layers: int = 0
    conv_state: int = 0
    quantized: str | None = None

    @property
    def qkv(self) -> int:
        """Numbers in the queries, keys and values of one token in one layer."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def feed_forward(self) -> int:
        """Numbers of one token in the MLP, or in the experts that it uses.

        A gated MLP has 4 vectors of inner size, others 2; docs/plan.md explains the numbers.
        """
        inner = self.inner
        if self.experts:
            inner = self.experts.inner * self.experts.per_token + self.experts.shared_inner
        return (4 if self.family.gated else 2) * inner


def read_shape(config: dict[str, Any], where: str) -> ModelShape:
    """Return the shape of the model in `config`, the parsed config.json of the checkpoint `where`.

    Raises BuildError: `unsupported_architecture` for a model that can't be planned (multi-head latent attention, not a
    decoder, an unknown model_type), `not_a_checkpoint` if a size is missing or invalid.
    """
    file = ConfigFile(config, where)
    kind = file.identifier("model_type")
    if kind is None:
        raise BuildError(f"{where} has a config.json without a model_type, so it is not a model.", "not_a_checkpoint")
    _refuse_others(config, kind, where)
    family = family_from_config(file, kind)
    sizes = read_sizes(file)
    return ModelShape(
        **sizes._asdict(),
        model_type=kind,
        architecture=file.first_identifier("architectures") or family.name,
        family=family,
        inner=_inner(file, kind, sizes.hidden),
        vocab=file.size("vocab_size"),
        positions=file.optional(*POSITIONS) or family.positions or file.size(*POSITIONS),
        tied=file.flag("tie_word_embeddings", family.tied),
        attention_bias=file.flag("attention_bias", kind in ("gpt_neox", "gpt_oss")),
        mlp_bias=file.flag("mlp_bias", False),
        windows=_windows(file, family.windows, sizes.layers),
        experts=_experts(file, kind, sizes.layers),
        conv_layers=_conv_layers(file, kind, sizes.layers),
        conv_state=sizes.hidden * (file.optional("conv_L_cache") or 3) if kind in _HYBRID else 0,
        quantized=_quantized(file),
    )


def _refuse_others(config: dict[str, Any], kind: str, where: str) -> None:
    if kind in MULTI_LATENT or config.get("kv_lora_rank"):
        raise unsupported(
            f"{where} has multi-head latent attention ({kind}), whose cache holds compressed vectors; the plan has "
            "no formula for them, so read the engine's start-up log instead."
        )
    if config.get("is_encoder_decoder"):
        raise unsupported(
            f"{where} holds an encoder and a decoder ({kind}); plan it alone, without --target and --task."
        )
    if kind not in FAMILIES:
        raise unsupported(
            f"{where} has the model_type {kind}, which is not known; known are {', '.join(sorted(FAMILIES))}."
        )
    if kind == "opt" and config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
        raise unsupported(f"{where} is an OPT model with embeddings narrower than its layers, which can't be planned.")


def _inner(file: ConfigFile, kind: str, hidden: int) -> int:
    if kind == "mpt":
        return (file.optional("expansion_ratio") or 4) * hidden
    if kind in WITHOUT_INNER:
        return file.optional("ffn_hidden_size" if kind == "falcon" else "n_inner") or 4 * hidden
    inner = file.size("block_ff_dim" if file.optional("block_ff_dim") else "intermediate_size", "ffn_dim")
    if kind != "lfm2" or not file.flag("block_auto_adjust_ff_dim", True):
        return inner
    step, factor = file.optional("block_multiple_of") or 256, file.content.get("block_ffn_dim_multiplier", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float | None) or not 0 < (factor or 1) < MAX_LAYERS:
        raise file.error("block_ffn_dim_multiplier is not a number above 0")
    return -(-int((factor or 1) * (2 * inner // 3)) // step) * step


def _conv_layers(file: ConfigFile, kind: str, layers: int) -> int:
    """Return how many layers are convolutions: those that layer_types or full_attn_idxs doesn't give attention."""
    if kind not in _HYBRID:
        return 0
    kinds, attention = file.content.get("layer_types"), file.content.get("full_attn_idxs")
    if isinstance(kinds, list) and len(kinds) == layers:
        return kinds.count("conv")
    if kinds is None and isinstance(attention, list):
        return max(layers - len(attention), 0)
    raise file.error("layer_types or full_attn_idxs doesn't say which layers have attention")


def _windows(file: ConfigFile, rule: WindowRule, layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer, from `layer_types` if the config has it."""
    # transformers writes a size of 0 for windows that are switched off.
    unused = rule == "none" or (rule == "qwen" and not file.flag("use_sliding_window", False))
    if unused or (window := file.optional("sliding_window")) is None:
        return (None,) * layers
    kinds = file.content.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != layers or any(kind not in ("sliding_attention", "full_attention") for kind in kinds):
            raise file.error("layer_types doesn't have a known type for each layer")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    first = file.optional("max_window_layers", least=0)
    first = layers if first is None else first
    pattern = file.optional("sliding_window_pattern") or (4 if file.content["model_type"] == "cohere2" else 6)
    everywhere: dict[str, Callable[[int], bool]] = {
        "all": lambda layer: False,
        "qwen": lambda layer: layer < first,
        "alternate": lambda layer: layer % 2 == 1,
        "all_but_last": lambda layer: (layer + 1) % pattern == 0,
    }
    return tuple(None if everywhere[rule](layer) else window for layer in range(layers))


def _experts(file: ConfigFile, kind: str, layers: int) -> Experts | None:
    if kind in ("mixtral", "phimoe", "granitemoe", "gpt_oss"):
        return Experts(
            count=file.optional("num_local_experts") or {"mixtral": 8, "phimoe": 16, "granitemoe": 8}.get(kind, 128),
            per_token=file.optional("num_experts_per_tok") or 2,
            inner=file.size("intermediate_size", "ffn_dim"),
            shared_inner=0,
            layers=layers,
            biased=kind == "gpt_oss",
        )
    if kind not in ("qwen2_moe", "qwen3_moe", "lfm2_moe"):
        return None
    count, inner = file.optional("num_experts"), file.optional("moe_intermediate_size")
    if count is None or inner is None:
        raise file.error("num_experts or moe_intermediate_size is missing")
    step = file.optional("decoder_sparse_step") or 1
    named = file.content.get("mlp_only_layers") or []
    if not isinstance(named, list):
        raise file.error("mlp_only_layers is not a list")
    dense = {layer for layer in named if isinstance(layer, int)}
    if kind == "lfm2_moe":
        first = file.optional("num_dense_layers", least=0)
        dense = set(range(2 if first is None else first))
    return Experts(
        count=count,
        per_token=file.optional("num_experts_per_tok") or 4,
        inner=inner,
        shared_inner=file.optional("shared_expert_intermediate_size", least=0) or 0,
        layers=sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0),
    )


def _quantized(file: ConfigFile) -> str | None:
    section = file.part("quantization_config")
    return None if section is None else section.identifier("quant_method") or "quantized"

"""The shape of a model: what config.json says of the size of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from build_engines.errors import BuildError
from build_engines.plan.families import FAMILIES, MULTI_LATENT, Family, WindowRule

_MOST_LAYERS = 10_000
# GPT-2, GPT-J and OPT have names of their own for the same things.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "inner": ("intermediate_size", "n_inner", "ffn_dim"),
    "positions": ("max_position_embeddings", "n_positions"),
    "vocab": ("vocab_size",),
}


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: how many, how many of them a token visits, and their inner size.

    `shared_inner` is the inner size of the one that every token visits (0: none), `layers` how many layers have them.
    """

    count: int
    per_token: int
    inner: int
    shared_inner: int
    layers: int


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. `windows` has one entry a layer: how far back it looks, None for everything."""

    model_type: str
    architecture: str
    family: Family
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
    quantized: str | None = None

    @property
    def qkv(self) -> int:
        """Numbers that queries, keys and values of one token have in one layer."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def feed_forward(self) -> int:
        """Numbers of one token on its way through the feed-forward part, of the experts that it visits alone.

        4 vectors of inner size where the part is gated, 2 where it isn't; docs/plan.md tells what that is fitted to.
        """
        inner = self.inner
        if self.experts:
            inner = self.experts.inner * self.experts.per_token + self.experts.shared_inner
        return (4 if self.family.gated else 2) * inner


def read_shape(config: dict[str, Any], where: str) -> ModelShape:
    """Return what `config`, the parsed config.json of the checkpoint `where`, says of the model.

    Raises BuildError: `unsupported_architecture` for what can't be planned (multi-head latent attention, not a decoder,
    a model_type that is not known), `not_a_checkpoint` where a size is missing or makes no sense.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise BuildError(f"{where} has a config.json without a model_type, so it is no model.", "not_a_checkpoint")
    _refuse_others(config, kind, where)
    family = FAMILIES[kind]
    sizes = {name: _size(config, name, where) for name in ("layers", "hidden", "heads", "vocab", "positions")}
    if sizes["layers"] > _MOST_LAYERS:
        raise _missing(where, f"{sizes['layers']} layers are more than any model has")
    heads = sizes["heads"]
    kv_heads = _optional(config, ("num_key_value_heads",), where) or heads
    if heads % kv_heads:
        raise _missing(where, f"{heads} attention heads don't share {kv_heads} KV heads evenly")
    inner = _optional(config, _NAMES["inner"], where)
    if inner is None and kind not in ("gpt2", "gptj"):
        raise _missing(where, "intermediate_size is missing")
    head_dim = _optional(config, ("head_dim",), where) or (256 if kind.startswith("gemma") else None)
    head_dim = head_dim or sizes["hidden"] // heads
    if not head_dim:
        raise _missing(where, f"{sizes['hidden']} numbers can't be shared by {heads} heads")
    return ModelShape(
        model_type=kind,
        architecture=_architecture(config, kind),
        family=family,
        kv_heads=kv_heads,
        head_dim=head_dim,
        inner=inner or 4 * sizes["hidden"],
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        attention_bias=bool(config.get("attention_bias", kind == "gpt_neox")),
        mlp_bias=bool(config.get("mlp_bias", False)),
        windows=_windows(config, family.windows, sizes["layers"], where),
        experts=_experts(config, kind, sizes["layers"], where),
        quantized=_quantized(config),
        **sizes,
    )


def _architecture(config: dict[str, Any], kind: str) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else kind


def _refuse_others(config: dict[str, Any], kind: str, where: str) -> None:
    if kind in MULTI_LATENT or config.get("kv_lora_rank"):
        raise BuildError(
            f"{where} has multi-head latent attention ({kind}), whose cache holds compressed vectors that this plan "
            "has no formula for; plan such models with the engine's own start-up log.",
            "unsupported_architecture",
        )
    if config.get("is_encoder_decoder"):
        raise BuildError(
            f"{where} holds an encoder and a decoder ({kind}); only decoders can be planned.",
            "unsupported_architecture",
        )
    if kind not in FAMILIES:
        raise BuildError(
            f"{where} is a {kind}, whose layers are not known here; known are {', '.join(sorted(FAMILIES))}.",
            "unsupported_architecture",
        )
    if kind == "opt" and config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
        raise BuildError(
            f"{where} is an OPT whose embeddings are narrower than its layers, which can't be planned.",
            "unsupported_architecture",
        )


def _size(config: dict[str, Any], name: str, where: str) -> int:
    found = _optional(config, _NAMES[name], where)
    if found is None:
        raise _missing(where, f"{_NAMES[name][0]} is missing")
    return found


def _optional(config: dict[str, Any], names: tuple[str, ...], where: str, least: int = 1) -> int | None:
    """The first of `names` that is there and not null, a whole number from `least` on."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise _missing(where, f"{name} is {value!r}")
            return value
    return None


def _missing(where: str, what: str) -> BuildError:
    return BuildError(
        f"The config.json of {where} can't be planned: {what}; fetch the checkpoint again.", "not_a_checkpoint"
    )


def _windows(config: dict[str, Any], rule: WindowRule, layers: int, where: str) -> tuple[int | None, ...]:
    """One window a layer. `layer_types`, where newer configs have it, says it outright."""
    window = _optional(config, ("sliding_window",), where)
    if window is None or rule == "none" or (rule == "qwen" and not config.get("use_sliding_window")):
        return (None,) * layers
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != layers or any(kind not in ("sliding_attention", "full_attention") for kind in kinds):
            raise _missing(where, "layer_types doesn't say for each layer whether it has a window")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    first = _optional(config, ("max_window_layers",), where, least=0)
    first = layers if first is None else first
    pattern = _optional(config, ("sliding_window_pattern",), where) or 6
    everywhere: dict[str, Callable[[int], bool]] = {
        "all": lambda layer: False,
        "qwen": lambda layer: layer < first,
        "alternate": lambda layer: layer % 2 == 1,
        "five_of_six": lambda layer: (layer + 1) % pattern == 0,
    }
    return tuple(None if everywhere[rule](layer) else window for layer in range(layers))


def _experts(config: dict[str, Any], kind: str, layers: int, where: str) -> Experts | None:
    if kind == "mixtral":
        return Experts(
            count=_optional(config, ("num_local_experts",), where) or 8,
            per_token=_optional(config, ("num_experts_per_tok",), where) or 2,
            inner=_size(config, "inner", where),
            shared_inner=0,
            layers=layers,
        )
    if kind not in ("qwen2_moe", "qwen3_moe"):
        return None
    count, inner = (_optional(config, (name,), where) for name in ("num_experts", "moe_intermediate_size"))
    if count is None or inner is None:
        raise _missing(where, "num_experts or moe_intermediate_size is missing")
    step = _optional(config, ("decoder_sparse_step",), where) or 1
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise _missing(where, f"mlp_only_layers is {dense!r}")
    return Experts(
        count=count,
        per_token=_optional(config, ("num_experts_per_tok",), where) or 4,
        inner=inner,
        shared_inner=_optional(config, ("shared_expert_intermediate_size",), where, least=0) or 0,
        layers=sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0),
    )


def _quantized(config: dict[str, Any]) -> str | None:
    found = config.get("quantization_config")
    if not found:
        return None
    return str(found.get("quant_method", "quantized")) if isinstance(found, dict) else "quantized"

"""Reads the manifest's facts of a model from the configs and tokenizer of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from build_engines.checkpoints.checkpoint import read_json
from build_engines.checkpoints.config_file import ConfigFile

# Some families use other names for the same values.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
# The default of transformers' Falcon, and the training length of BLOOM: ALiBi itself has no limit.
_DEFAULT_POSITIONS = {"falcon": 2048, "bloom": 2048}
MAX_LAYERS = 1000
_MAX_SCALING = 10_000
_ANSWER = "An answer."
_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class ModelFacts:
    """Sizes, the maximum number of tokens (`positions`), and the data type of the checkpoint.

    `inner` is the size of the feed-forward layers, by default four times `hidden`.
    """

    architecture: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    positions: int
    dtype: str


@dataclass(frozen=True)
class SpecialIds:
    """Any of `end_ids` ends an answer."""

    end_ids: list[int]
    pad_id: int | None
    bos_id: int | None


def read_facts(directory: Path, config: dict[str, Any]) -> ModelFacts:
    """Return the facts of the checkpoint `directory` with the parsed config.json `config`.

    Raises BuildError (`not_a_checkpoint`) if a value is missing or impossible.
    """
    file = ConfigFile(config, str(directory), "used")
    sizes = read_sizes(file)
    return ModelFacts(
        **sizes._asdict(),
        architecture=str(config["architectures"][0]),
        inner=file.optional(*_INNER) or (file.optional("expansion_ratio") or 4) * sizes.hidden,
        vocab_size=file.size("vocab_size"),
        positions=_positions(file),
        dtype=_dtype(config),
    )


def read_special_ids(directory: Path, config: dict[str, Any], tokenizer: Any) -> SpecialIds:
    """Return the ids from generation_config.json, config.json or the tokenizer, in this order of preference.

    An answer also ends with the tokenizer's end token, and with what ends an assistant's turn in its chat template:
    of a model that was trained on, the other files may name the end of a text alone.
    """
    path = directory / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    return SpecialIds(
        end_ids=_end_ids(generation, config, tokenizer),
        pad_id=_first_id(generation.get("pad_token_id"), config.get("pad_token_id"), tokenizer.pad_token_id),
        bos_id=_first_id(generation.get("bos_token_id"), config.get("bos_token_id"), tokenizer.bos_token_id),
    )


class LayerSizes(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


def read_sizes(file: ConfigFile) -> LayerSizes:
    """Return the sizes of the layers and their attention. Raises BuildError as `read_facts` does."""
    layers, hidden, heads = file.size(*_LAYERS, most=MAX_LAYERS), file.size(*_HIDDEN), file.size(*_HEADS)
    kind = str(file.content.get("model_type"))
    kv_heads = file.optional("num_key_value_heads", "num_kv_heads") or heads
    # Falcon 7B and GPT BigCode have one, or all, even if Falcon's config says otherwise; Falcon 40B does not.
    old = kind in ("falcon", "gpt_bigcode")
    shares_all = file.flag("multi_query", old)
    if (old or shares_all) and not file.flag("new_decoder_architecture", False):
        kv_heads = 1 if shares_all else heads
    if heads % kv_heads:
        raise file.error(f"{heads} attention heads don't share {kv_heads} KV heads evenly")
    head_dim = file.optional("head_dim") or (256 if kind.startswith("gemma") else hidden // heads)
    if not head_dim:
        raise file.error(f"{hidden} numbers can't be shared by {heads} heads")
    return LayerSizes(layers, hidden, heads, kv_heads, head_dim)


def _positions(file: ConfigFile) -> int:
    positions = file.optional(*POSITIONS) or _DEFAULT_POSITIONS.get(str(file.content.get("model_type")))
    positions = positions or file.size(*POSITIONS)
    name = "rope_parameters" if "rope_parameters" in file.content else "rope_scaling"  # transformers 5, and 4
    scaling = file.part(name)
    # With YaRN, max_position_embeddings is the length before scaling in some configs, and after it in others.
    if scaling is None or (scaling.identifier("rope_type") or scaling.identifier("type")) != "yarn":
        return positions
    original = scaling.optional("original_max_position_embeddings") or positions
    factor = scaling.content.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= _MAX_SCALING:
        raise scaling.error(f"the factor of {name} is not a number above 0 and up to {_MAX_SCALING:,}")
    return max(positions, int(original * factor))


def _dtype(config: dict[str, Any]) -> str:
    named = config.get("torch_dtype") or config.get("dtype")
    return named if named in _DTYPES else "float32"


def _end_ids(generation: dict[str, Any], config: dict[str, Any], tokenizer: Any) -> list[int]:
    configured = _first_id(generation.get("eos_token_id"), config.get("eos_token_id"))
    # A list names all ends: gpt-oss has other special tokens between the parts of an answer.
    if isinstance(configured, list):
        return sorted({*configured, tokenizer.eos_token_id} - {None})
    return sorted({configured, tokenizer.eos_token_id, _turn_end(tokenizer)} - {None})


def _turn_end(tokenizer: Any) -> int | None:
    """Return the special token that follows an assistant's message in the chat template."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # of any kind, if there is no template or it refuses these messages
        return None
    rest = text.rpartition(_ANSWER)[2].lstrip()
    ends = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return max(((len(token), number) for token, number in ends.items() if rest.startswith(token)), default=(0, None))[1]


def _first_id(*ids: Any) -> Any:
    return next((number for number in ids if number is not None), None)

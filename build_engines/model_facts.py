"""What the manifest says of a model, read from its checkpoint's configs and tokenizer alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError

# Some families have names of their own for the same things.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "hidden size": ("hidden_size", "n_embd", "d_model"),
    "vocabulary": ("vocab_size",),
    "inner size": ("intermediate_size", "n_inner", "ffn_dim"),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "kv heads": ("num_key_value_heads", "num_kv_heads"),
}
_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class ModelFacts:
    """Sizes, the most tokens that the model knows (`positions`), and the numbers' type in the checkpoint.

    `inner` is the feed-forward layers' size, four times `hidden` where the config doesn't say it.
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

    Raises BuildError (`not_a_checkpoint`) where the config lacks one of them.
    """
    heads = _size(directory, config, "heads")
    hidden = _size(directory, config, "hidden size")
    return ModelFacts(
        architecture=str(config["architectures"][0]),
        layers=_size(directory, config, "layers"),
        hidden=hidden,
        inner=next((config[name] for name in _NAMES["inner size"] if config.get(name)), 4 * hidden),
        heads=heads,
        kv_heads=_kv_heads(directory, config, heads),
        head_dim=config.get("head_dim") or hidden // heads,
        vocab_size=_size(directory, config, "vocabulary"),
        positions=_positions(directory, config),
        dtype=_dtype(config),
    )


def read_special_ids(directory: Path, config: dict[str, Any], tokenizer: Any) -> SpecialIds:
    """Return the ids as generation_config.json, config.json and the tokenizer say, in this order of who knows best."""
    path = directory / "generation_config.json"
    generation = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return SpecialIds(
        end_ids=next((ids for ids in _end_ids(generation, config, tokenizer) if ids), []),
        pad_id=_first(generation.get("pad_token_id"), config.get("pad_token_id"), tokenizer.pad_token_id),
        bos_id=_first(generation.get("bos_token_id"), config.get("bos_token_id"), tokenizer.bos_token_id),
    )


def _size(directory: Path, config: dict[str, Any], what: str) -> int:
    found = next((config[name] for name in _NAMES[what] if isinstance(config.get(name), int)), None)
    if not found or found < 1:
        raise BuildError(
            f"{directory / 'config.json'} doesn't say how many {what} the model has ({_NAMES[what][0]}); "
            "fetch the checkpoint again.",
            "not_a_checkpoint",
        )
    return int(found)


def _kv_heads(directory: Path, config: dict[str, Any], heads: int) -> int:
    # Falcon 7B and GPT BigCode have one, whatever else Falcon's config says; Falcon 40B is of the new kind.
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    if any(isinstance(config.get(name), int) for name in _NAMES["kv heads"]):
        return _size(directory, config, "kv heads")
    return heads


def _positions(directory: Path, config: dict[str, Any]) -> int:
    # ALiBi has no end of its own; BLOOM's config says nothing but what it was trained with.
    if config.get("model_type") == "bloom" and "seq_length" not in config:
        return 2048
    known = _size(directory, config, "positions")
    scaling = config.get("rope_scaling") or {}
    # With YaRN, some configs keep the length before scaling in max_position_embeddings, some the one after it.
    if scaling.get("rope_type", scaling.get("type")) == "yarn":
        original = scaling.get("original_max_position_embeddings", known)
        return max(known, int(original * scaling.get("factor", 1.0)))
    return known


def _dtype(config: dict[str, Any]) -> str:
    named = config.get("torch_dtype") or config.get("dtype")
    return named if named in _DTYPES else "float32"


def _end_ids(generation: dict[str, Any], config: dict[str, Any], tokenizer: Any) -> Iterator[list[int]]:
    for found in (generation.get("eos_token_id"), config.get("eos_token_id"), tokenizer.eos_token_id):
        yield [] if found is None else sorted({found} if isinstance(found, int) else set(found))


def _first(*ids: int | None) -> int | None:
    return next((number for number in ids if number is not None), None)

"""Reads with transformers 4 what transformers 5 writes into config.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError

# The names in transformers 4 of a model's rotary parameters, by the kind of layer if those of a model differ by it.
_THETA = ("rope_theta", "rotary_emb_base")
_PART = ("partial_rotary_factor", "rotary_pct")
_BY_LAYER = {
    "gemma3_text": {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
    "modernbert": {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
}


def rope_fields(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return transformers 4's fields for `rope_parameters` of a parsed config.json; {} without them.

    Raises BuildError (`unsupported_architecture`) for parameters that transformers 4 has no fields for.
    """
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, dict):
        return {}
    names = _BY_LAYER.get(str(config.get("model_type")), {})
    if not any(isinstance(value, dict) for value in parameters.values()):
        return _flat(parameters, _THETA)
    if parameters.keys() != names.keys():
        raise BuildError(
            f"rope_parameters in {directory}/config.json differ by kind of layer, as transformers 5 writes them, and"
            " this model can't be read so; save the checkpoint with transformers 4.57 and build again.",
            "unsupported_architecture",
        )
    return {
        name: value
        for kind, theta in reversed(names.items())
        for name, value in _flat(parameters[kind], (theta,)).items()
        if name == theta or kind == "full_attention"
    }


def _flat(parameters: Mapping[str, Any], thetas: tuple[str, ...]) -> dict[str, Any]:
    moved = {"rope_theta": thetas, "partial_rotary_factor": _PART}
    fields = {name: parameters[key] for key, names in moved.items() if key in parameters for name in names}
    scaling = {name: value for name, value in parameters.items() if name not in moved}
    return fields if scaling.get("rope_type", "default") == "default" else fields | {"rope_scaling": scaling}


def read_transformers_config(directory: Path) -> Any:
    """Return transformers' config of a checkpoint; raises ValueError and KeyError for an unknown model."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    for name, value in rope_fields(config.to_dict(), directory).items():
        if hasattr(config, name):
            setattr(config, name, value)
    return config


def tokenizer_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `from_pretrained` that replace fields of a parsed tokenizer_config.json; {} for most."""
    special = settings.get("extra_special_tokens")
    if not isinstance(special, list):
        return {}
    # In transformers 4 this field has names, and tokens without a name are in the other one.
    further = [*(settings.get("additional_special_tokens") or []), *special]
    return {"extra_special_tokens": {}, "additional_special_tokens": further}

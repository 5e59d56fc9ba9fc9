"""The text part of a config; multimodal models keep it in a separate section."""

from __future__ import annotations

from typing import Any

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the parsed config.json `config` as that of the model that reads and writes text.

    Where that is a part, what it leaves out is what transformers takes for it (Gemma 3 4B says neither its heads nor
    its vocabulary), if it knows the model. Ids of special tokens are the whole's, where it has its own.
    """
    name = next((name for name in _TEXT_SECTIONS if isinstance(config.get(name), dict)), None)
    if name is None or "num_hidden_layers" in config:
        return config
    said = {key: value for key, value in config[name].items() if value is not None}
    of_the_whole = {key: value for key, value in config.items() if key not in _TEXT_SECTIONS and value is not None}
    return {**_transformers_defaults(config), **said, **of_the_whole}


def _transformers_defaults(config: dict[str, Any]) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    try:
        whole = CONFIG_MAPPING[str(config["model_type"])].from_dict(config)
        usual = whole.get_text_config(decoder=True).to_dict()
    except Exception:  # unknown to transformers, or not as it wants it: the config must say everything itself
        return {}
    # That a class has a type of its own says nothing of the weights.
    return {key: value for key, value in usual.items() if key not in ("dtype", "torch_dtype")}

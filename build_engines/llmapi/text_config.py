"""The text part of a config; multimodal models keep it in a separate section."""

from __future__ import annotations

from typing import Any

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the text model in the parsed config.json `config`.

    Missing keys of a text section get transformers' defaults, if it knows the model (Gemma 3 4B has neither its heads
    nor its vocabulary). Keys outside the section, such as ids of special tokens, take precedence.
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
    except Exception:  # transformers doesn't know the model or rejects its config: no defaults
        return {}
    # The default type of the class is not the type of the weights.
    return {key: value for key, value in usual.items() if key not in ("dtype", "torch_dtype")}

"""Reads how a model samples by default from the generation_config.json of its engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = "generation_config.json"
_NAMES = ("temperature", "top_k", "top_p", "repetition_penalty")
_SAMPLES = _NAMES[:3]


def model_sampling(engine: Path) -> dict[str, Any]:
    """Return the sampling parameters of the model; greedy decoding if it names none, as transformers has it.

    A file that can't be read, or values that are no numbers, count as absent.
    """
    try:
        found = json.loads((engine / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    given = {
        name: found[name]
        for name in _NAMES
        if isinstance(found, dict) and type(found.get(name)) in (int, float) and found[name] >= 0
    }
    samples = found.get("do_sample", any(name in given for name in _SAMPLES)) if isinstance(found, dict) else False
    if not samples:
        return {"temperature": 0.0} | {name: value for name, value in given.items() if name not in _SAMPLES}
    return {"temperature": 1.0} | given


def has_chat_template(engine: Path) -> bool:
    """Return whether preprocessing can render messages for the engine."""
    if (engine / "chat_template.jinja").is_file() or any((engine / "additional_chat_templates").glob("*.jinja")):
        return True
    try:
        return bool(json.loads((engine / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False

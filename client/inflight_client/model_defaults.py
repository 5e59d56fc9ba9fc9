"""What a server says that its model does by default: how it samples, and whether prompts are conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inflight_client.call import Prompt
from inflight_client.sampling import Sampling

OPENAI_SAMPLING: Mapping[str, Any] = {"temperature": 1.0}
"""The defaults of OpenAI's API."""


def with_model_defaults(sampling: Sampling, served: Mapping[str, Any]) -> Sampling:
    """Return the parameters with the model's in place of unset ones; unchanged if the server publishes none.

    If a caller asks for sampling, a model that is greedy by default samples with temperature 1.

    >>> with_model_defaults(Sampling(top_p=0.5), {"sampling": {"temperature": 0.7, "top_k": 20}}).temperature
    0.7
    """
    defaults = served.get("sampling")
    if not isinstance(defaults, Mapping):
        return sampling
    unset = {name: value for name, value in defaults.items() if getattr(sampling, name, "") is None}
    if unset.get("temperature") == 0 and (sampling.top_p is not None or (sampling.top_k or 0) > 1):
        unset["temperature"] = 1.0
    return replace(sampling, **unset)


def as_conversation(text: str, served: Mapping[str, Any]) -> Prompt:
    """Return a text as the user's message if the server says that the model has a chat template."""
    return [{"role": "user", "content": text}] if served.get("chat_template") else text

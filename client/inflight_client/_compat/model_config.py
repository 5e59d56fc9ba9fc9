"""A model's configuration, as far as a client reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_YES = ("true", "yes", "1", "t", "y")
_NO = ("false", "no", "0", "f", "n")


class ModelConfig:
    """Reads what Triton hands out, in protobuf's own field names; an empty one tells nothing."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = config or {}

    @property
    def known(self) -> bool:
        return bool(self._config)

    @property
    def name(self) -> str:
        return str(self._config.get("name", ""))

    @property
    def inputs(self) -> set[str]:
        return {str(tensor.get("name")) for tensor in self._config.get("input", ())}

    @property
    def steps(self) -> list[str]:
        """The models of an ensemble, each once; none for other models."""
        scheduling = self._config.get("ensemble_scheduling") or {}
        return list(dict.fromkeys(str(step.get("model_name")) for step in scheduling.get("step", ())))

    @property
    def decoupled(self) -> bool | None:
        """Whether it may give several responses to a request; None where nothing is known of it."""
        if not self._config:
            return None
        return bool((self._config.get("model_transaction_policy") or {}).get("decoupled", False))

    def parameter(self, name: str) -> str:
        """A parameter's text; empty where there is none, or upstream's placeholder was never filled in."""
        value = str(((self._config.get("parameters") or {}).get(name) or {}).get("string_value", ""))
        return "" if value.startswith("${") else value

    def json_parameter(self, name: str) -> dict[str, str | int]:
        """A parameter that is a JSON object of texts and whole numbers; empty where it is none."""
        try:
            found = json.loads(self.parameter(name))
            return {str(key): value for key, value in found.items() if isinstance(value, str | int)}
        except (ValueError, AttributeError, RecursionError):
            return {}

    def flag(self, name: str) -> bool | None:
        """A parameter that is yes or no; None where it is neither."""
        value = self.parameter(name).lower()
        return True if value in _YES else False if value in _NO else None

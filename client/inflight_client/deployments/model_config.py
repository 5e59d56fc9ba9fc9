"""The parts of a model's configuration that the client reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_FURTHER: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("sampling", "adapters_sha256"), (dict,)),
    **dict.fromkeys(("notes", "adapters"), (list,)),
}
_YES = ("true", "yes", "1", "t", "y")
_NO = ("false", "no", "0", "f", "n")


class ModelConfig:
    """Reads a Triton model configuration with protobuf's field names; it may be empty."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = config or {}

    @property
    def known(self) -> bool:
        return bool(self._config)

    @property
    def name(self) -> str:
        return str(self._config.get("name", ""))

    @property
    def backend(self) -> str:
        return str(self._config.get("backend", ""))

    @property
    def inputs(self) -> set[str]:
        return {str(tensor.get("name")) for tensor in self._config.get("input", ())}

    @property
    def steps(self) -> list[str]:
        """Return the models of an ensemble, each once; empty for other models."""
        scheduling = self._config.get("ensemble_scheduling") or {}
        return list(dict.fromkeys(str(step.get("model_name")) for step in scheduling.get("step", ())))

    @property
    def decoupled(self) -> bool | None:
        """Return whether the model may send several responses to a request; None if unknown."""
        if not self._config:
            return None
        return bool((self._config.get("model_transaction_policy") or {}).get("decoupled", False))

    def parameter(self, name: str) -> str:
        """Return a parameter's text; empty if it is missing or still upstream's placeholder."""
        value = str(((self._config.get("parameters") or {}).get(name) or {}).get("string_value", ""))
        return "" if value.startswith("${") else value

    def json_parameter(self, name: str) -> dict[str, Any]:
        """Return a parameter that is a JSON object of texts, whole numbers and `_FURTHER`; empty if it is not."""
        try:
            values = json.loads(self.parameter(name))
            return {
                str(key): value
                for key, value in values.items()
                if isinstance(value, (str, int, *_FURTHER.get(key, ())))
            }
        except (ValueError, AttributeError, RecursionError):
            return {}

    def flag(self, name: str) -> bool | None:
        """Return a boolean parameter; None if it is missing or not boolean."""
        value = self.parameter(name).lower()
        return True if value in _YES else False if value in _NO else None

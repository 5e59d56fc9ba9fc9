"""What a server of OpenAI's protocol says about itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inflight_client._http.messages import json_object, json_value
from inflight_client._http.responses import malformed
from inflight_client.address import Address
from inflight_client.dialects import DIALECTS, Dialect
from inflight_client.errors import InflightError

_API = re.compile(r"/v\d+$")
_TRANSIENT = ("created", "permission", "status", "in_cache", "loaded", "ready")
"""Fields of a model's entry that differ from one start of the server to the next."""


@dataclass(frozen=True)
class OpenAIServerFacts:
    """What a server says: its dialect, the model that requests name by default, its models, its version.

    `model` is that of the address or the server's only one, else empty; `version` is the server's, and `fingerprint`
    differs when another model is served: each is empty if the server does not say.
    """

    dialect: str
    model: str
    models: tuple[str, ...]
    version: str
    fingerprint: str


def server_facts(
    name: str, model: str, entries: Sequence[Mapping[str, Any]] | None, version: str, where: str
) -> OpenAIServerFacts:
    """Return the facts; `entries` is None of a server without a list of models.

    Raises InflightError `model_not_found` if the list does not have the model `model`.
    """
    models = tuple(str(entry["id"]) for entry in entries or ())
    if model and models and model not in models and DIALECTS[name].checks_model:
        raise InflightError(
            f"the server at {where} has no model {model}; name one of its models: {', '.join(models)}",
            "model_not_found",
        )
    model = model or (models[0] if len(models) == 1 else "")
    about = [{key: entry[key] for key in sorted(entry) if key not in _TRANSIENT} for entry in entries or ()]
    if model and len(about) > 1:
        about = [entry for entry in about if entry["id"] in (model, f"{model}:latest")]  # Ollama adds the tag
    text = json.dumps([name, model, about], default=str)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16] if about else ""
    return OpenAIServerFacts(name, model, models, version, fingerprint)


def api_paths(address: Address) -> tuple[str, str]:
    """Return the path of the server, and that of its API after it.

    >>> api_paths(Address.parse("https://tea.example/llm/v1"))
    ('/llm', '/v1')
    """
    found = _API.search(address.path)
    return (address.path[: found.start()], found[0]) if found else ("", address.path)


def model_entries(body: bytes) -> list[Mapping[str, Any]]:
    """Parse the list of models. Raises InflightError `answer_damaged` for invalid data."""
    try:
        entries = list(json_object(body)["data"] or ())  # Ollama's is null without models
        if not all(entry["id"] for entry in entries):
            raise ValueError("an entry has no id")
        return entries
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise malformed("the list of models", f"{type(error).__name__}: {error}") from None


def dialect_of_models(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the dialect that a list of models shows; empty if it shows none."""
    owners = {entry.get("owned_by") for entry in entries}
    for name, dialect in DIALECTS.items():
        if dialect.owner and dialect.owner in owners:
            return name
    if "me" in owners:  # llama-cpp-python's own server
        return "llama.cpp"
    return "tgi" if entries and all(entry.get("owned_by") == entry["id"] for entry in entries) else ""


def is_about(body: bytes, dialect: Dialect) -> bool:
    """Return whether this is the dialect's description of itself."""
    try:
        return dialect.known_by in json_object(body)
    except InflightError:
        return False


def version(body: bytes, field: str = "version") -> str:
    value = json_value(body)
    return str(value.get(field, "")) if isinstance(value, dict) else ""

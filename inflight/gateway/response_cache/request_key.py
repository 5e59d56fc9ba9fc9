"""What an answer depends on, as bytes: two requests with the same bytes may get the same answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from inflight_client.call import Prompt, TokenIds

from inflight import __version__
from inflight.gateway.servers import UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.field_reader import whole
from inflight.openai_api.request import GenerationRequest

_MAX_BYTES = 2**20
_NOT_OF_THE_ANSWER = ("no_effect", "characters", "priority")
"""What follows from other fields, or changes only when an answer comes."""


def request_key(
    parsed: GenerationRequest,
    model: str,
    server: UpstreamServer,
    settings: GatewaySettings,
    tenant: str,
    routes: str | None,
    responses: Mapping[str, Any] | None,
) -> bytes | None:
    """Return the key of a request with the model's defaults, or None if its answer is no function of it.

    `model` is the server's or one of its adapters', `routes` the SHA-256 of the routes file, and `responses` what an
    answer of the Responses API repeats. The order of fields does not matter where the gateway reads them; below, the
    model may see it.
    """
    sampling, deployment = parsed.sampling, server.deployment
    if deployment is None or not deployment.build or not server.ready:
        return None
    if sampling.temperature != 0 and sampling.seed is None:
        return None
    if model != server.model and model not in deployment.served.get("adapters_sha256", ()):
        return None
    values: dict[str, Any] = {name: getattr(parsed, name) for name in _FIELDS}
    key = {
        "version": __version__,
        "tenant": tenant,
        "engine": (deployment.build, deployment.version, deployment.served, model),
        "text": server.text.digest,
        "settings": [settings.default_max_tokens, settings.tool_call_parser, settings.reasoning_parser],
        "routes": routes,
        "request": values
        | {
            "prompts": [_prompt(each) for each in parsed.prompts],
            "chat_template_kwargs": _texts(parsed.chat_template_kwargs),
        },
        "responses": responses,
    }
    raw = json.dumps(key, sort_keys=True, default=_plain).encode()
    return raw if len(raw) <= _MAX_BYTES else None


_FIELDS = [each.name for each in fields(GenerationRequest) if each.name not in _NOT_OF_THE_ANSWER]


def _prompt(prompt: Prompt | TokenIds) -> Any:
    if isinstance(prompt, str | TokenIds):
        return prompt
    messages: Sequence[Mapping[str, Any]] = prompt
    return [_texts(each) for each in messages]


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as JSON in their own order: chat templates write some of them as they are."""
    return {name: json.dumps(each) for name, each in values.items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        named = ((each.name, whole(getattr(value, each.name))) for each in fields(value))
        return {name: [_texts(each) for each in held] if name == "functions" else held for name, held in named}
    return dict(value)

"""What an answer depends on, as bytes: two requests with the same bytes may get the same answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from inflight_client.call import TokenIds

from inflight import __version__
from inflight.gateway.routes_file import Routes
from inflight.gateway.server_pool import Candidate
from inflight.gateway.servers import UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.field_reader import whole
from inflight.openai_api.request import GenerationRequest

_MAX_BYTES = 2**20
_NOT_OF_THE_ANSWER = ("no_effect", "characters", "priority")
"""What follows from other fields, or changes only when an answer comes."""
_CLOCK = re.compile(r"""strftime_now(?:\s+is(?:\s+not)?\s+defined|\s*\(\s*(["'])(.*?)\1\s*\))""")
_VARYING = re.compile(r"strftime_now|\|\s*random\b")


def request_key(
    candidate: Candidate,
    parsed: GenerationRequest,
    responses: Mapping[str, Any] | None,
    tenant: str,
    settings: GatewaySettings,
    routes: Routes,
) -> bytes | None:
    """Return the key of a request with the model's defaults, or None if its answer is no function of it.

    `responses` is what an answer of the Responses API repeats. The order of fields does not matter where the gateway
    reads them; below, the model may see it.
    """
    server, model, sampling = candidate.target, candidate.model, parsed.sampling
    if not isinstance(server, UpstreamServer) or not server.build or not server.ready:
        return None
    assert server.deployment is not None
    about = {name: value for name, value in server.deployment.served.items() if name != "metrics_port"}
    is_known = model == server.model or model in about.get("adapters_sha256", ())
    if not is_known or (sampling.temperature != 0 and sampling.seed is None):
        return None
    forms = _clock_forms(server.text.template) if parsed.chat and server.speaks_tokens else None
    if parsed.chat and forms is None:
        return None
    now = datetime.now()
    values: dict[str, Any] = {name: getattr(parsed, name) for name in _FIELDS}
    values["prompts"] = [
        each if isinstance(each, str | TokenIds) else [_in_order(message) for message in each]
        for each in parsed.prompts
    ]
    values["chat_template_kwargs"] = _in_order(parsed.chat_template_kwargs)
    own = (settings.default_max_tokens, settings.tool_call_parser, settings.reasoning_parser)
    engine = (
        server.build,
        server.deployment.version,
        about,
        server.text.digest,
        [now.strftime(each) for each in forms or ()],
        model,
    )
    key = (__version__, tenant, engine, own, routes.sha256, values, responses)
    raw = json.dumps(key, sort_keys=True, default=_plain).encode()
    return raw if len(raw) <= _MAX_BYTES else None


_FIELDS = [each.name for each in fields(GenerationRequest) if each.name not in _NOT_OF_THE_ANSWER]


@lru_cache(64)
def _clock_forms(template: str) -> Sequence[str] | None:
    """Return the forms in which a chat template may show the time; None: what it shows can't be known."""
    if _VARYING.search(_CLOCK.sub("", template)):
        return None
    return [each[2] for each in _CLOCK.finditer(template) if each[2]]


def _in_order(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as JSON with their own order of names."""
    return {name: json.dumps(each) for name, each in values.items()}


def _plain(value: Any) -> Any:
    if not is_dataclass(value):
        return dict(value)
    named = {each.name: whole(getattr(value, each.name)) for each in fields(value)}
    return named | {"functions": [_in_order(each) for each in named["functions"]]} if "functions" in named else named

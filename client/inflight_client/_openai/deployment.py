"""A gateway's model as a deployment: the options that OpenAI's API takes, in the names of the tensors."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.encoder_detection import only_encoders
from inflight_client.deployments.server_query import ServerQuery, ask
from inflight_client.errors import InflightError
from inflight_client.results import Model

_TEXTS = (
    *("text_input", "messages", "chat_template_kwargs", "stop_words", "bad_words"),
    *("guided_decoding_guide_type", "guided_decoding_guide"),
)
_WHOLE_NUMBERS = (
    *("prompt_token_ids", "max_tokens", "top_k", "seed", "min_tokens", "end_id", "priority", "deadline_ms"),
    *("logit_bias_ids", "allowed_token_ids"),
)
_NUMBERS = (
    *("temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_p", "logit_bias_values"),
)
_FLAGS = ("stream", "exclude_input_in_output", "return_log_probs")

INPUTS = {
    name: (datatype, (1,))
    for datatype, names in (("BYTES", _TEXTS), ("INT64", _WHOLE_NUMBERS), ("FP64", _NUMBERS), ("BOOL", _FLAGS))
    for name in names
}
"""The inputs that have a field in OpenAI's API, or one of the gateway's own."""
OUTPUTS = {"text_output": ("BYTES", (1,)), "finish_reason": ("BYTES", (1,))}


def detect(model: str | None) -> Generator[ServerQuery, Any, Deployment]:
    """Find the gateway's only model, or the named one.

    Yields queries and is sent the responses; errors are thrown in. Raises InflightError.
    """
    found: list[Model] = yield ServerQuery("index")
    names = sorted({each.name for each in found if each.task in ("", "generate")})
    listed = ", ".join(names) or "none"
    if model is None and not names and any(each.task for each in found):
        raise only_encoders(each.task for each in found)
    if model is None and len(names) != 1:
        raise InflightError(
            f"the gateway serves {len(names)} models that generate text ({listed}); name the one to use",
            "unsupported_deployment" if found else "model_not_ready",
        )
    if model not in names and any(each.name == model for each in found):
        raise InflightError(
            f"the gateway's model {model} does not generate text; name one of those that do: {listed}",
            "unsupported_deployment",
        )
    if model is not None and model not in names:
        raise InflightError(
            f"the gateway has no model {model}, or this API key may not use it; name one of its models: {listed}",
            "model_not_found",
        )
    server = yield from ask("server")
    version = server.version or None if server else None
    name = model or names[0]
    # A gateway samples as its model does. What has a chat route has a chat template, as a rule.
    served = {"model": name, "chat_template": True}
    return Deployment(name, "openai", INPUTS, OUTPUTS, decoupled=True, version=version, served=served)

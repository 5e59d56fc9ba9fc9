"""A gateway's model that generates text: how it is detected, and the requests that it takes."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from inflight_client.call import Call, TokenIds
from inflight_client.deadline import deadline_ms
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.encoder_detection import only_encoders
from inflight_client.deployments.requests import rendered_prompt, sampling_values
from inflight_client.deployments.server_query import ServerQuery, ask
from inflight_client.dialects import DIALECTS
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.sampling import PARAMETERS, Guide
from inflight_client.transport import InferRequest

if TYPE_CHECKING:
    from inflight_client.chat_template import ChatTemplate

_TIERS = {0: "auto", 1: "priority", -1: "flex"}


def detect(model: str | None) -> Generator[ServerQuery, Any, Deployment]:
    """Find the gateway's only model, or the named one.

    Yields queries and is sent the responses; errors are thrown in. Raises InflightError.
    """
    try:
        models: list[Model] = yield ServerQuery("index")
    except InflightError as error:
        if model is None or error.code != "unsupported_deployment":
            raise
        models = [Model(model, "", "READY")]  # the server has no list
    server = yield from ask("server")
    dialect = server.name if server is not None and server.name in DIALECTS else "inflight"
    if model is not None and not DIALECTS[dialect].checks_model:
        models = [Model(model, "", "READY")]
    names = sorted({each.name for each in models if each.task in ("", "generate")})
    listed = ", ".join(names) or "none"
    if model is None and not names and any(each.task for each in models):
        raise only_encoders(each.task for each in models)
    if model is None and len(names) != 1:
        raise InflightError(
            f"the server serves {len(names)} models that generate text ({listed}); name the one to use",
            "unsupported_deployment" if models else "model_not_ready",
        )
    if model not in names and any(each.name == model for each in models):
        raise InflightError(
            f"the server's model {model} does not generate text; name one of those that do: {listed}",
            "unsupported_deployment",
        )
    if model is not None and model not in names:
        raise InflightError(
            f"the server has no model {model}, or this API key may not use it; name one of its models: {listed}",
            "model_not_found",
        )
    version = server.version or None if server and dialect == "inflight" else None
    name = model or names[0]
    # A gateway samples as its model does. What has a chat route has a chat template, as a rule.
    served = {"model": name, "chat_template": True}
    return Deployment(name, "openai", decoupled=True, version=version, served=served)


def completion_request(
    deployment: Deployment, call: Call, seconds_left: float | None, template: ChatTemplate | None
) -> InferRequest:
    """Return the call's request. Raises Unsupported for options that OpenAI's API lacks, and no_chat_template."""
    without_field = {
        "top_log_probs": call.top_log_probs,
        "return_prompt_log_probs": call.return_prompt_log_probs,
        "return_token_ids": call.return_token_ids,
        "return_perf_metrics": call.return_perf_metrics,
        "add_special_tokens": call.add_special_tokens is not None,
        "adapter": call.sampling.adapter is not None,
        "an end_id other than -1": call.sampling.end_id not in (None, -1),
        "a priority other than -1, 0 and 1": call.priority not in _TIERS,
    }
    for option, asked in without_field.items():
        if asked:
            raise InflightError(
                f"OpenAI's API has no field for {option}; leave it out, or use the address of the Triton server",
                "unsupported_input",
            )
    if call.tenant:
        raise deployment.unsupported("tenant", "the gateway takes it from the API key; leave it out")
    headers = {"traceparent": call.traceparent} if call.traceparent else {}
    if seconds_left is not None:
        headers["x-inflight-deadline-ms"] = str(min(deadline_ms(seconds_left), 10**9 - 1))
    prompt = _prompt(call, template)
    body = {"model": deployment.model, **prompt, **_options(call)}
    if call.return_log_probs:
        body["logprobs"] = True if "messages" in prompt else 0
    return InferRequest(deployment.model, call.request_id, headers=headers, body=body)


def _prompt(call: Call, template: ChatTemplate | None) -> dict[str, Any]:
    if isinstance(call.prompt, str):
        return {"prompt": call.prompt}
    if isinstance(call.prompt, TokenIds):
        return {"prompt": call.prompt.ids}
    if template is not None:
        return {"prompt": rendered_prompt(call, template, None)}
    arguments = json.loads(call.template_kwargs_json)
    return {"messages": json.loads(call.messages_json), **({"chat_template_kwargs": arguments} if arguments else {})}


def _options(call: Call) -> dict[str, Any]:
    fields: dict[str, Any] = {"max_tokens": int(call.max_tokens), "stream": True}
    fields["stream_options"] = {"include_usage": True}
    if call.priority:
        fields["service_tier"] = _TIERS[call.priority]
    for name, value in sampling_values(call.sampling).items():
        if name in PARAMETERS:
            if PARAMETERS[name].openai:
                fields[name] = int(value) if PARAMETERS[name].whole else float(value)
        elif name == "logit_bias":
            fields[name] = {int(token_id): float(bias) for token_id, bias in value.items()}
        elif name == "allowed_token_ids":
            fields[name] = list(map(int, value))
        else:
            fields[name] = value
    if "temperature" not in fields and fields.get("top_k", 0) <= 1 and not fields.get("top_p"):
        fields["temperature"] = 0.0  # OpenAI's default is 1, ours is greedy decoding
    if call.sampling.end_id == -1:
        fields["ignore_eos"] = True
    if call.sampling.guide is not None:
        fields["response_format"] = _response_format(call.sampling.guide)
    return fields


def _response_format(guide: Guide) -> dict[str, Any]:
    if guide.type == "json":
        return {"type": "json_object"}
    if guide.type == "json_schema":
        try:
            schema = json.loads(guide.text)
        except (ValueError, RecursionError):
            raise InflightError("the guide's JSON schema is not JSON; correct it", "invalid_parameter") from None
        return {"type": guide.type, "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    kind = "ebnf" if guide.type == "ebnf_grammar" else guide.type
    return {"type": kind, kind: guide.text}

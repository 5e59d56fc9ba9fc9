"""Creates clients for a plan's server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight_client import Client, InflightError
from inflight_client.address import Tls, parse_header
from inflight_client.retry import NO_RETRY

from loadtests.errors import LoadError
from loadtests.plan import LoadPlan

HEADERS_VARIABLE = "INFLIGHT_LOAD_HEADERS"
"""The environment variable that passes headers to the generator, one per line. They may be secrets, so no file contains
them."""


_PROBE = "a text"


def connect(plan: LoadPlan) -> Client:
    """Return a client without retries, so that every failure is seen. Raises LoadError or InflightError."""
    files = {name: Path(path) for name in ("ca", "certificate", "key") if (path := getattr(plan, name))}
    return Client(
        plan.server,
        plan.model,
        headers=parse_headers(plan),
        tls=Tls(**files) if files else None,
        retry=NO_RETRY,
        chat_template=plan.chat_template,
        metrics_url=plan.metrics_url,
    )


@dataclass(frozen=True)
class ServedModel:
    """The model that a plan's requests go to, as far as its server describes it."""

    name: str
    kind: str
    version: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def find_model(plan: LoadPlan, client: Client) -> ServedModel:
    """Return the model for the plan's task. Raises InflightError if it is unreachable or has no such model.

    For a model that generates, this asks for its description; an encoder computes a text.
    """
    if plan.task == "generate":
        deployment = client.deployment()
        return ServedModel(deployment.model, deployment.kind, deployment.version, dict(deployment.served))
    if plan.task == "transcribe":
        found = next((each for each in client.encoders() if each.task == "transcribe" and each.ready), None)
        if found is None and plan.model is None and not client.address.openai:
            raise InflightError(f"{plan.server} has no model that transcribes; serve one", "model_not_found")
        name = plan.model or ("" if found is None else found.model)
        return ServedModel(name, plan.task, facts={"model": name, **({} if found is None else found.served)})
    if plan.task == "rerank":
        model = client.rerank(_PROBE, [_PROBE]).model
    else:
        model = (client.embed(_PROBE) if plan.task == "embed" else client.classify(_PROBE)).model
    return ServedModel(model, plan.task, facts={"model": model})


def without_secrets(plan: LoadPlan) -> tuple[LoadPlan, dict[str, str]]:
    """Return the plan without secrets, and the environment that passes them to the process that reads the plan."""
    return plan.model_copy(update={"header": ()}), {HEADERS_VARIABLE: "\n".join(plan.header)}


def with_secrets(plan: LoadPlan) -> LoadPlan:
    """Return a plan that was written `without_secrets`, completed from this process's environment."""
    return plan.model_copy(update={"header": tuple(os.environ.get(HEADERS_VARIABLE, "").splitlines())})


def parse_headers(plan: LoadPlan) -> Mapping[str, str]:
    """Return the plan's headers by name. Raises LoadError for a malformed one."""
    try:
        return dict(map(parse_header, plan.header))
    except InflightError as error:
        raise LoadError(str(error), error.code) from None

"""Creates clients for a plan's server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from inflight_client import Client, InflightError
from inflight_client.address import Tls, parse_header
from inflight_client.retry import NO_RETRY
from inflight_client.settings import ClientSettings

from loadtests.errors import LoadError
from loadtests.plan import LoadPlan

HEADERS_VARIABLE = "INFLIGHT_LOAD_HEADERS"
"""The environment variable that passes headers to the generator, one per line. They may be secrets, so no file contains
them."""


def connect(plan: LoadPlan) -> Client:
    """Return a client without retries, so that every failure is seen. Raises LoadError or InflightError."""
    template = plan.chat_template
    return Client(
        plan.server, plan.model, headers=parse_headers(plan), tls=_tls(plan), retry=NO_RETRY, chat_template=template
    )


def client_settings(plan: LoadPlan) -> ClientSettings:
    """Return the same settings, for the metrics page."""
    return ClientSettings.from_arguments(
        plan.server, plan.model, parse_headers(plan), _tls(plan), None, None, plan.metrics_url
    )


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


def _tls(plan: LoadPlan) -> Tls | None:
    files = {name: Path(path) for name in ("ca", "certificate", "key") if (path := getattr(plan, name))}
    return Tls(**files) if files else None

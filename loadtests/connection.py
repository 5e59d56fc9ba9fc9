"""How a plan's server is reached."""

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
"""The environment variable that brings headers, one a line, to the generator: they may be secrets, and no file has
them."""


def connect(plan: LoadPlan) -> Client:
    """A client that tries nothing again: each failure is to be seen. Raises LoadError or InflightError."""
    template = plan.chat_template
    return Client(
        plan.server, plan.model, headers=parse_headers(plan), tls=_tls(plan), retry=NO_RETRY, chat_template=template
    )


def client_settings(plan: LoadPlan) -> ClientSettings:
    """The same, to look at the metrics page."""
    return ClientSettings.from_arguments(
        plan.server, plan.model, parse_headers(plan), _tls(plan), None, None, plan.metrics_url
    )


def without_secrets(plan: LoadPlan) -> tuple[LoadPlan, dict[str, str]]:
    """A plan as it may be written, and the environment that brings the rest to the process that reads it."""
    return plan.model_copy(update={"header": ()}), {HEADERS_VARIABLE: "\n".join(plan.header)}


def with_secrets(plan: LoadPlan) -> LoadPlan:
    """A plan that was written `without_secrets`, made whole by this process's environment."""
    return plan.model_copy(update={"header": tuple(os.environ.get(HEADERS_VARIABLE, "").splitlines())})


def parse_headers(plan: LoadPlan) -> Mapping[str, str]:
    """Its headers by their names. Raises LoadError for one that is written wrongly."""
    try:
        return dict(map(parse_header, plan.header))
    except InflightError as error:
        raise LoadError(str(error), error.code) from None


def _tls(plan: LoadPlan) -> Tls | None:
    files = {name: Path(path) for name in ("ca", "certificate", "key") if (path := getattr(plan, name))}
    return Tls(**files) if files else None

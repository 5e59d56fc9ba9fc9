"""How a plan's server is reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from inflight_client import Client, InflightError
from inflight_client.address import Tls, header_of
from inflight_client.retry import NO_RETRY
from inflight_client.settings import Settings

from loadtests.errors import LoadError
from loadtests.plan import Plan

HEADERS = "INFLIGHT_LOAD_HEADERS"
"""The environment variable that brings headers, one a line, to the generator: they may be secrets, and no file has
them."""


def connect(plan: Plan) -> Client:
    """A client that tries nothing again: each failure is to be seen. Raises LoadError or InflightError."""
    template = plan.chat_template
    return Client(
        plan.address, plan.model, headers=headers_of(plan), tls=_tls(plan), retry=NO_RETRY, chat_template=template
    )


def settings_of(plan: Plan) -> Settings:
    """The same, to look at the metrics page."""
    return Settings.of(plan.address, plan.model, headers_of(plan), _tls(plan), None, None, plan.metrics_url)


def without_secrets(plan: Plan) -> tuple[Plan, dict[str, str]]:
    """A plan as it may be written, and the environment that brings the rest to the process that reads it."""
    return plan.model_copy(update={"header": ()}), {HEADERS: "\n".join(plan.header)}


def with_secrets(plan: Plan) -> Plan:
    """A plan that was written `without_secrets`, made whole by this process's environment."""
    return plan.model_copy(update={"header": tuple(os.environ.get(HEADERS, "").splitlines())})


def headers_of(plan: Plan) -> Mapping[str, str]:
    """Its headers by their names. Raises LoadError for one that is written wrongly."""
    try:
        return dict(map(header_of, plan.header))
    except InflightError as error:
        raise LoadError(str(error), error.code) from None


def _tls(plan: Plan) -> Tls | None:
    files = {name: Path(path) for name in ("ca", "certificate", "key") if (path := getattr(plan, name))}
    return Tls(**files) if files else None

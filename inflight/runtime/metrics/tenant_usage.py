"""Tokens by tenant, for sharing the cost of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from inflight.runtime.metrics.definitions import TENANT_TOKENS, MetricFamily

MAX_TENANTS = 100
OTHER = "other"
"""What all further ones are counted for: each tenant is two series, and their number is anybody's choice."""


class LabelledSink(Protocol):
    """Where such series are shown."""

    def add_to(self, family: MetricFamily, labels: Mapping[str, str], count: int) -> None:
        """Add to the series with these labels, which there is from then on."""


class TenantUsage:
    """Counts on a board the tokens of each tenant's requests."""

    def __init__(self, sink: LabelledSink) -> None:
        self._sink = sink
        self._known: set[str] = set()

    def count(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """A request has ended; one without a tenant is not counted."""
        if not tenant:
            return
        if tenant not in self._known and len(self._known) >= MAX_TENANTS:
            tenant = OTHER
        elif tenant != OTHER:
            self._known.add(tenant)
        for kind, count in (("input", input_tokens), ("output", output_tokens)):
            self._sink.add_to(TENANT_TOKENS, {"tenant": tenant, "kind": kind}, count)

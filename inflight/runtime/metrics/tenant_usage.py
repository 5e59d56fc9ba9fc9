"""Tokens by tenant, for sharing the cost of a server."""

from __future__ import annotations

from inflight.runtime.metrics.definitions import TENANT_TOKENS, MetricsSink

MAX_TENANTS = 100
OTHER = "other"
"""The label of all further tenants: each tenant adds two series, and clients choose the names."""


class TenantUsage:
    """Counts the tokens of each tenant's requests."""

    def __init__(self, sink: MetricsSink) -> None:
        self._sink = sink
        self._known: set[str] = set()

    def count(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """Count an ended request; requests without a tenant are not counted."""
        if not tenant:
            return
        if tenant not in self._known and len(self._known) >= MAX_TENANTS:
            tenant = OTHER
        elif tenant != OTHER:
            self._known.add(tenant)
        for kind, count in (("input", input_tokens), ("output", output_tokens)):
            self._sink.add_to(TENANT_TOKENS, {"tenant": tenant, "kind": kind}, count)

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from inflight.runtime.metrics.definitions import TENANT_TOKENS, MetricFamily, NullSink
from inflight.runtime.metrics.engine_metrics import MAX_TENANTS, TenantUsage


class RecordingSink(NullSink):
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add_to(self, family: MetricFamily, labels: Mapping[str, str], count: int) -> None:
        assert family is TENANT_TOKENS
        self.counts[labels["tenant"], labels["kind"]] += count


def test_tokens_are_counted_by_tenant() -> None:
    sink = RecordingSink()
    tokens = TenantUsage(sink)
    for tenant, count in (("a", 3), ("b", 5), ("a", 2), ("", 7)):
        tokens.count(tenant, 10, count)
    assert sink.counts == {("a", "input"): 20, ("a", "output"): 5, ("b", "input"): 10, ("b", "output"): 5}


def test_further_tenants_are_counted_together() -> None:
    sink = RecordingSink()
    tokens = TenantUsage(sink)
    for number in range(MAX_TENANTS + 50):
        tokens.count(f"tenant {number}", 1, 2)
    tokens.count("other", 1, 2)
    tokens.count("tenant 3", 1, 2)
    assert len(sink.counts) == 2 * (MAX_TENANTS + 1)
    assert sink.counts["other", "output"] == 2 * 51
    assert sink.counts["tenant 3", "input"] == 2

"""Triton's metrics page."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from inflight.deploy.server.server import Server

SOON = 60.0

Labels = tuple[tuple[str, str], ...]


@dataclass
class MetricsPage:
    """What each family is, and all samples by name and labels (sorted)."""

    kinds: dict[str, str] = field(default_factory=dict)
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, name: str, model: str = "tensorrt_llm", **labels: str) -> float:
        return self.samples[name, tuple(sorted({"model": model, "version": "1", **labels}.items()))]

    def family(self, name: str) -> dict[Labels, float]:
        return {labels: value for (found, labels), value in self.samples.items() if found == name}

    def state(self, family: str, label: str) -> dict[str, float]:
        """A family's values by its own label."""
        return {dict(labels)[label]: value for labels, value in self.family(family).items()}

    @property
    def requests(self) -> dict[str, float]:
        return self.state("nv_trt_llm_request_metrics", "request_type")

    @property
    def kv_blocks(self) -> dict[str, float]:
        return self.state("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type")

    @property
    def batcher(self) -> dict[str, float]:
        return self.state("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric")

    @property
    def ends(self) -> dict[str, float]:
        return self.state("inflight_requests_total", "reason")

    @property
    def steps(self) -> float:
        return self.value("nv_trt_llm_general_metrics", general_type="iteration_counter")

    def count(self, histogram: str, **labels: str) -> float:
        return self.value(f"{histogram}_count", **labels)

    def total(self, histogram: str, **labels: str) -> float:
        return self.value(f"{histogram}_sum", **labels)

    @property
    def quiet(self) -> bool:
        """Nothing runs, waits or holds a block."""
        requests = self.requests
        busy = [requests[kind] for kind in ("active", "scheduled", "context", "waiting")]
        batch = [self.batcher[kind] for kind in ("total_context_tokens", "generation_requests")]
        return not any([*busy, *batch, self.kv_blocks["used"], self.kv_blocks["fraction"]])


def text_of(server: Server) -> str:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=SOON) as page:
        text: str = page.read().decode()
        return text


def parse(text: str) -> MetricsPage:
    """Raises for an invalid line, and AssertionError for a family or a sample that comes twice."""
    page = MetricsPage()
    for family in text_string_to_metric_families(text):
        # The parser has all counters without their suffix, and their samples with it; Triton's own have none.
        suffix = "_total" if f"# TYPE {family.name}_total counter\n" in text else ""
        name = family.name + suffix
        assert name not in page.kinds, f"{name} comes twice"
        page.kinds[name] = family.type
        for sample in family.samples:
            key = name if family.type == "counter" else sample.name, tuple(sorted(sample.labels.items()))
            assert key not in page.samples, key
            page.samples[key] = sample.value
    return page


def page_of(server: Server) -> MetricsPage:
    return parse(text_of(server))


def page_when(server: Server, condition: Callable[[MetricsPage], bool]) -> MetricsPage:
    """The first page of which that is true; waits for it."""
    deadline = time.monotonic() + SOON
    while not condition(page := page_of(server)):
        assert time.monotonic() < deadline, page.samples
        time.sleep(0.02)
    return page


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """What has been added, by member; without those that are the same."""
    return {member: after[member] - before[member] for member in after if after[member] != before[member]}

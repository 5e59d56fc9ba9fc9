"""Triton's metrics page, read strictly: Prometheus' text format 0.0.4."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inflight.deploy.server.server import Server

SOON = 60.0
_SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([a-z_]+="[^"\\]*"(?:,[a-z_]+="[^"\\]*")*)\})? (\S+)$')
_LABEL = re.compile(r'([a-z_]+)="([^"\\]*)"')
_SUFFIX = re.compile(r"_(bucket|sum|count)$")

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
    """Raises AssertionError for an invalid line, a sample without its family before it, or one that comes twice."""
    page = MetricsPage()
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family, line
            assert name not in page.kinds, f"{name} comes twice"
            page.kinds[name] = kind
        else:
            _add(page, family, line)
    return page


def _add(page: MetricsPage, family: str, line: str) -> None:
    sample = _SAMPLE.match(line)
    assert sample, line
    name, raw_labels, value = sample.groups(default="")
    suffix = _SUFFIX.sub("", name) if page.kinds[family] in ("histogram", "summary") else name
    assert suffix == family, line
    labels = tuple(sorted(_LABEL.findall(raw_labels)))
    assert (name, labels) not in page.samples, line
    try:
        page.samples[name, labels] = float(value)
    except ValueError as error:
        raise AssertionError(line) from error


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

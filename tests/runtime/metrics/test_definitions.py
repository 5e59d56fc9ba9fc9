"""The table of metrics, and what is written about it: the docs and the dashboard name what there is, and all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from inflight.runtime.metrics.definitions import FAMILIES, MetricFamily, MetricKind

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "inflight.json"
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
_OURS = re.compile(r"\b((?:nv_trt_llm|nv_llm|inflight)_[a-z_]+)")
_SELECTED = re.compile(r"(\w+)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SUFFIX = re.compile(r"_(bucket|sum|count)$")

BY_NAME = {family.name: family for family in FAMILIES}


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    of_docs = re.findall(r"^\| [^|]+ \| `(.*)` \|$", PAGE.split("## Questions")[1], re.MULTILINE)
    return [*of_docs, *(target["expr"] for panel in panels for target in panel.get("targets", ()))]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_metric_and_each_of_its_members_is_explained(family: MetricFamily) -> None:
    assert f"`{family.name}`" in PAGE
    if family.label and family.kind is MetricKind.GAUGE:
        assert f'`{family.label}="' in PAGE
        for member in family.label_values:
            assert f'"{member}"`' in PAGE
    if family.name == "inflight_requests_total":
        for member in family.label_values:
            assert f"`{member}`" in PAGE


@pytest.mark.parametrize("expression", expressions())
def test_expressions_name_metrics_and_labels_that_exist(expression: str) -> None:
    labels = {family.label for family in FAMILIES}
    for name in _OURS.findall(expression):
        if name not in labels and not name.startswith("inflight_gateway_"):  # tests/docker compares these
            assert _SUFFIX.sub("", name) in BY_NAME, name
    for name, selection in _SELECTED.findall(expression):
        family = BY_NAME.get(_SUFFIX.sub("", name))
        for label, value in _LABEL.findall(selection) if family else ():
            assert family
            assert label == family.label
            assert value in family.label_values


def test_names_are_told_apart_and_buckets_rise() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    for family in FAMILIES:
        assert bool(family.buckets) == (family.kind is MetricKind.HISTOGRAM)
        assert list(family.buckets) == sorted(set(family.buckets))

"""Grafana's dashboard and what it is provisioned with: all files exist, and ask for metrics that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from inflight.deploy.server.server import Server
from inflight.gateway.metrics import GatewayMetrics
from inflight.runtime.metrics.definitions import FAMILIES
from tests.fixtures.engines import ROOT
from tests.serving.metrics_page import page_of

GRAFANA = ROOT / "docker" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "inflight.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
_METRIC = re.compile(r"\b(?:nv|inflight)_[a-z_]+\b(?!=)")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
# What a server without a GPU has not, and what Triton shows only where an option asks for it.
_ELSEWHERE = ("nv_gpu_", "nv_inference_first_response_histogram_ms")


def provisioned(room: str, file: str) -> Any:
    return yaml.safe_load((GRAFANA / "provisioning" / room / file).read_text(encoding="utf-8"))


def metrics_in(expression: str) -> set[str]:
    """Every metric that an expression names, without the suffixes of histograms."""
    labels = {family.label for family in FAMILIES}
    return {_SUFFIX.sub("", name) for name in _METRIC.findall(expression)} - labels


def asked_for() -> set[str]:
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    variables = [variable["query"] for variable in DASHBOARD["templating"]["list"]]
    return set().union(*map(metrics_in, expressions + variables))


def test_every_metric_is_on_a_servers_page_or_among_tritons_documented_ones(server: Server) -> None:
    shown = set(page_of(server).kinds)
    documented = re.findall(r"`(nv_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"))
    gateway = {name for name in asked_for() if name.startswith("inflight_gateway_")}
    own = {family.name for family in text_string_to_metric_families(GatewayMetrics(bool).page().decode())}
    assert {name.removesuffix("_total") for name in gateway} <= own
    missing = asked_for() - shown - gateway
    assert {name for name in missing if not name.startswith(_ELSEWHERE)} == set()
    assert missing <= set(documented)


def test_the_datasource_is_the_provisioned_one() -> None:
    (source,) = provisioned("datasources", "prometheus.yaml")["datasources"]
    variable = next(entry for entry in DASHBOARD["templating"]["list"] if entry["type"] == "datasource")
    assert (source["uid"], source["type"]) == (variable["current"]["value"], variable["query"])
    for panel in PANELS:
        assert panel["datasource"] == {"type": source["type"], "uid": "${datasource}"}, panel["title"]


def test_prometheus_is_asked_where_compose_runs_it_and_as_often_as_it_scrapes() -> None:
    (source,) = provisioned("datasources", "prometheus.yaml")["datasources"]
    scraping = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    monitoring = yaml.safe_load((ROOT / "docker" / "compose.monitoring.yaml").read_text(encoding="utf-8"))
    service, port = source["url"].removeprefix("http://").split(":")
    assert any(published.endswith(f":{port}") for published in monitoring["services"][service]["ports"])
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]


def test_dashboards_are_looked_for_where_they_are_mounted() -> None:
    (provider,) = provisioned("dashboards", "inflight.yaml")["providers"]
    place = provider["options"]["path"]
    grafana = yaml.safe_load((ROOT / "docker" / "compose.monitoring.yaml").read_text())["services"]["grafana"]
    assert f"./grafana/dashboards:{place}:ro" in grafana["volumes"]
    assert "./grafana/provisioning:/etc/grafana/provisioning:ro" in grafana["volumes"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{place}/inflight.json"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_that_needs_what_tensorrt_llm_has_not_says_what_it_shows_there(panel: dict[str, Any]) -> None:
    """Metrics of ours are missing there; those that both have, and Triton's, are not."""
    metrics = set().union(*(metrics_in(target["expr"]) for target in panel["targets"]))
    of_the_gateway = all(name.startswith("inflight_gateway_") for name in metrics)
    assert of_the_gateway or any(name.startswith("nv_") for name in metrics), "nothing is shown there"
    if not of_the_gateway and any(name.startswith("inflight_") for name in metrics):
        assert "TensorRT-LLM's own backend" in panel["description"]


def test_panels_lie_beside_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells

"""KEDA's ScaledObject: valid by KEDA's schema, and its queries by a real Prometheus that scrapes two live gateways."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest
import yaml

from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from tests.docker.kustomize import Manifest, documents, render
from tests.fixtures.engines import ROOT
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import complete
from tests.fixtures.prometheus import program, scraping
from tests.fixtures.server import STEP_SECONDS
from tests.fixtures.waiting import wait_until

SCHEMA = json.loads((ROOT / "tests" / "data" / "keda_scaledobject.schema.json").read_text(encoding="utf-8"))
RULES = ROOT / "docker" / "prometheus"
JOB = "inflight"
STREAMS = 3
TOKENS = round(4 / STEP_SECONDS)
"""Of answers that are open for at least four seconds."""


@pytest.fixture(scope="module")
def scaled() -> Manifest:
    (manifest,) = documents(ROOT / "docker" / "kubernetes" / "autoscaling" / "scaledobject.yaml")
    return manifest


def queries(scaled: Manifest) -> list[str]:
    return [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]


def test_it_is_valid_and_scales_the_deployment(scaled: Manifest) -> None:
    jsonschema.validate(scaled, SCHEMA)
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "prometheus"
        assert trigger["metadata"].keys() >= {"serverAddress", "query", "threshold"}
        assert float(trigger["metadata"]["threshold"]) > 0
    rendered = {manifest["kind"]: manifest for manifest in render(ROOT / "docker" / "kubernetes" / "overlays" / "cpu")}
    assert scaled["spec"]["scaleTargetRef"]["name"] == rendered["Deployment"]["metadata"]["name"]
    assert "replicas" not in rendered["Deployment"]["spec"], "each apply would set it back"
    # One pod may leave, and one remains.
    assert scaled["spec"]["minReplicaCount"] > rendered["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    (job,) = yaml.safe_load((RULES / "kubernetes.yml").read_text())["scrape_configs"]
    assert all(f'job="{job["job_name"]}"' in query for query in queries(scaled))


@pytest.mark.parametrize("wrong", [{"minReplicas": 1}, {"triggers": []}, {"fallback": {"replicas": 1}}])
def test_a_wrong_one_would_be_noticed(scaled: Manifest, wrong: Manifest) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**scaled, "spec": {**scaled["spec"], **wrong}}, SCHEMA)


@pytest.mark.parametrize("file", ["prometheus.yml", "kubernetes.yml", "gateway-alerts.yaml"])
def test_prometheus_accepts_the_files(file: str, tmp_path: Path) -> None:
    check = ["rules"] if "alerts" in file else ["config", "--syntax-only"]
    content = yaml.safe_load((RULES / file).read_text())
    for job in content.get("scrape_configs", []):
        job.pop("kubernetes_sd_configs", None)  # Debian's Prometheus is built without
    (tmp_path / file).write_text(yaml.safe_dump(content))
    subprocess.run([program("promtool"), "check", *check, str(tmp_path / file)], check=True, capture_output=True)


@pytest.mark.slow
def test_queries_count_the_requests_and_the_cache_of_all_replicas(
    scaled: Manifest, gateway: GatewayProcesses, paced_server: Server, tmp_path: Path
) -> None:
    requests, cache = queries(scaled)
    with (
        running_gateway(paced_server) as other,
        scraping(JOB, [f"127.0.0.1:{each.port}" for each in (gateway, other)], tmp_path) as prometheus,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        wait_until(lambda: prometheus.query(f'sum(up{{job="{JOB}"}})') == [2.0])
        assert prometheus.query(requests) == [0.0]
        answers = [pool.submit(complete, other, max_tokens=TOKENS, ignore_eos=True) for _ in range(STREAMS)]
        wait_until(lambda: prometheus.query(requests) == [STREAMS])
        (used,) = wait_until(lambda: [value for value in prometheus.query(cache) if value > 0], "a used cache")
        assert used <= 1
        assert [answer.result().status for answer in answers] == [200] * STREAMS
        wait_until(lambda: prometheus.query(requests) == [0.0])

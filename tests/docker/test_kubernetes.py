"""The manifests for Kubernetes: valid by the published schemas, and right in what no schema says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from inflight.deploy.server.server import _STOP_TIMEOUT
from tests.docker.kustomize import Manifest, documents, render
from tests.docker.serve_options import value, variables
from tests.fixtures.engines import ROOT

KUBERNETES = ROOT / "docker" / "kubernetes"
OVERLAYS = ("cpu", "gpu")
# The oldest and the newest that the package has.
VERSIONS = ("1.25.0", kubernetes_validate.latest_version())
DOCKERFILE_UID = 1000


def manifests(overlay: str) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in render(KUBERNETES / "overlays" / overlay)}


def pod(overlay: str) -> Manifest:
    spec = manifests(overlay)["Deployment"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container(overlay: str) -> Manifest:
    (only,) = pod(overlay)["containers"]
    assert isinstance(only, dict)
    return only


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rendered_manifests_are_valid(overlay: str, version: str) -> None:
    rendered = render(KUBERNETES / "overlays" / overlay)
    assert len(rendered) == len(list((KUBERNETES / "base").glob("*.yaml"))) - 1
    for manifest in rendered:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize(
    "path",
    sorted(KUBERNETES.rglob("*.yaml")),
    ids=lambda path: str(path.relative_to(KUBERNETES)),
)
def test_each_file_is_valid_by_itself(path: Path) -> None:
    if path.name == "kustomization.yaml":
        if path.parent.parent.name == "overlays":
            return
        named = set(documents(path)[0]["resources"])
        assert named == {file.name for file in path.parent.glob("*.yaml")} - {path.name}
        return
    for manifest in documents(path):
        if manifest["kind"] != "ScaledObject":  # KEDA's, see test_autoscaling.py
            kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


def test_a_wrong_manifest_would_be_noticed() -> None:
    wrong = manifests("cpu")["Deployment"]
    wrong["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods(overlay: str) -> None:
    rendered = manifests(overlay)
    labels = rendered["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        rendered["Deployment"]["spec"]["selector"]["matchLabels"],
        rendered["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        rendered["Service"]["spec"]["selector"],
    ]
    assert all(selector and selector.items() <= labels.items() for selector in selectors)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_named_exists(overlay: str) -> None:
    """Ports, volumes, the claim, the ConfigMap, and the ports that others may reach."""
    rendered, found = manifests(overlay), container(overlay)
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert ports == {"openai": 8080}
    (rule,) = rendered["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == list(ports)
    assert {port["targetPort"] for port in rendered["Service"]["spec"]["ports"]} == set(ports)
    for probe in ("startupProbe", "livenessProbe"):
        assert found[probe]["httpGet"]["port"] in ports
    volumes = {volume["name"]: volume for volume in pod(overlay)["volumes"]}
    assert {mount["name"] for mount in found["volumeMounts"]} == set(volumes)
    (claim,) = documents(KUBERNETES / "engine" / "claim.yaml")
    assert volumes["engine"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert found["envFrom"] == [{"configMapRef": {"name": rendered["ConfigMap"]["metadata"]["name"]}}]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_option_is_one_of_serve(overlay: str) -> None:
    assert set(manifests(overlay)["ConfigMap"]["data"]) <= variables()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_is_given_the_time_that_it_needs(overlay: str) -> None:
    found, options = container(overlay), manifests(overlay)["ConfigMap"]["data"]
    drain = value("drain_seconds", options.get("INFLIGHT_SERVE_DRAIN_SECONDS"))
    start = value("start_timeout", options.get("INFLIGHT_SERVE_START_TIMEOUT"))
    pause = float(found["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod(overlay)["terminationGracePeriodSeconds"] >= pause + drain + 2 * _STOP_TIMEOUT
    for probe in ("startupProbe", "livenessProbe"):
        assert found[probe]["periodSeconds"] * found[probe]["failureThreshold"] >= start
    assert found["readinessProbe"]["timeoutSeconds"] > 10  # what the script takes by itself at the most


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_may_do_nothing_that_it_need_not(overlay: str) -> None:
    """What Kubernetes calls the restricted Pod Security Standard, and a root file system that can't be written."""
    spec, found = pod(overlay), container(overlay)
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": DOCKERFILE_UID,
        "runAsGroup": DOCKERFILE_UID,
        "fsGroup": DOCKERFILE_UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert spec["automountServiceAccountToken"] is False
    assert all(volume.keys() & {"emptyDir", "persistentVolumeClaim", "secret"} for volume in spec["volumes"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_must_be_written_to_is_mounted_and_the_engine_is_not_written_to(overlay: str) -> None:
    mounts: dict[str, Any] = {mount["mountPath"]: mount for mount in container(overlay)["volumeMounts"]}
    assert mounts["/engine"]["readOnly"] is True
    volumes = {volume["name"]: volume for volume in pod(overlay)["volumes"]}
    for place in ("/tmp", "/run/inflight", "/dev/shm"):
        assert "emptyDir" in volumes[mounts[place]["name"]]
    shared = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]
    assert shared["medium"] == "Memory"
    assert int(shared["sizeLimit"].removesuffix("Gi")) >= 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_resources_are_bounded(overlay: str) -> None:
    resources = container(overlay)["resources"]
    for kind in ("cpu", "memory", "ephemeral-storage"):
        assert kind in resources["requests"]
        assert kind in resources["limits"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]  # what it reserves, it fills


def test_only_gpu_pods_ask_for_gpus() -> None:
    resources = container("gpu")["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"]
    assert "nvidia.com/gpu.present" in pod("gpu")["nodeSelector"]
    assert any(toleration["key"] == "nvidia.com/gpu" for toleration in pod("gpu")["tolerations"])
    assert manifests("gpu")["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    assert "nvidia.com/gpu" not in yaml.safe_dump(manifests("cpu"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_image_is_the_one_that_compose_builds(overlay: str) -> None:
    compose = yaml.safe_load((ROOT / "docker" / f"compose.{overlay}.yaml").read_text(encoding="utf-8"))
    assert container(overlay)["image"] == compose["services"]["inflight"]["image"]


def test_the_loader_writes_where_pods_read_and_as_their_user() -> None:
    (loader,) = documents(KUBERNETES / "engine" / "loader.yaml")
    (claim,) = documents(KUBERNETES / "engine" / "claim.yaml")
    (volume,) = loader["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert loader["spec"]["containers"][0]["volumeMounts"] == [{"name": volume["name"], "mountPath": "/engine"}]
    assert loader["spec"]["securityContext"]["runAsUser"] == pod("cpu")["securityContext"]["runAsUser"]
    assert loader["spec"]["containers"][0]["image"] == container("cpu")["image"]

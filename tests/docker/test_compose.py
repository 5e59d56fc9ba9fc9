"""The compose files: what they name exists, and a container gets what its image needs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from inflight import __version__
from inflight.deploy.server.server import _STOP_TIMEOUT
from tests.docker.serve_options import value, variables
from tests.fixtures.engines import ROOT

DOCKER = ROOT / "docker"
KINDS = ("cpu", "gpu")
_DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")


def load(kind: str) -> dict[str, Any]:
    """A compose file, its services with what they extend."""
    found: dict[str, Any] = yaml.safe_load((DOCKER / f"compose.{kind}.yaml").read_text(encoding="utf-8"))
    for name, one in found["services"].items():
        if (base := one.pop("extends", None)) is not None:
            other = yaml.safe_load((DOCKER / base["file"]).read_text(encoding="utf-8"))["services"][base["service"]]
            assert not other.keys() & one.keys()
            assert "depends_on" not in other, "what others depend on can't be extended"
            found["services"][name] = {**other, **one}
    return found


def service(kind: str) -> dict[str, Any]:
    found = load(kind)["services"]["inflight"]
    assert isinstance(found, dict)
    return found


def seconds(duration: str) -> int:
    found = _DURATION.fullmatch(duration)
    assert found, duration
    return 60 * int(found[1] or 0) + int(found[2] or 0)


@pytest.mark.parametrize("kind", KINDS)
def test_services_are_healthy_pinned_and_restarted(kind: str) -> None:
    services = load(kind)["services"]
    assert set(services) == {"inflight", "prometheus", "grafana"}
    for name, found in services.items():
        assert re.fullmatch(r"[a-z-]+(/[a-z-]+)?:v?\d+\.\d+\.\d+", found["image"]), name
        assert found["healthcheck"]["test"][0] == "CMD"
        assert seconds(found["healthcheck"]["timeout"]) <= seconds(found["healthcheck"]["interval"])
        assert found["restart"] == "unless-stopped"
        assert found["cap_drop"] == ["ALL"]
        assert found["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("kind", KINDS)
def test_ports_are_published_to_this_machine_alone_unless_asked_otherwise(kind: str) -> None:
    published = [port for found in load(kind)["services"].values() for port in found["ports"]]
    assert all(port.startswith("${INFLIGHT_PUBLISH:-127.0.0.1}:") for port in published)
    numbers = [port.rsplit(":", 2)[1:] for port in published]
    assert all(outside == inside for outside, inside in numbers)
    assert len({outside for outside, _ in numbers}) == len(numbers)
    assert {"8000", "8001", "8002"} <= {outside for outside, _ in numbers}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_mounted_exists(kind: str) -> None:
    found = load(kind)
    for name, one in found["services"].items():
        for mount in one["volumes"]:
            if isinstance(mount, str):
                source = mount.split(":")[0]
                known = (DOCKER / source).exists() if source.startswith("./") else source in found["volumes"]
                assert known, f"{name} mounts {source}"
                assert mount.endswith(":ro") == source.startswith("./")
        for other in one.get("depends_on", {}):
            assert other in found["services"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_image_is_built_from_its_dockerfile(kind: str) -> None:
    build = service(kind)["build"]
    context = (DOCKER / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    assert kind in build["dockerfile"]
    assert service(kind)["image"] == f"inflight-{kind}:{__version__}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_is_mounted_read_only_and_never_made_by_docker(kind: str) -> None:
    mount, keys = service(kind)["volumes"]
    assert (keys["target"], keys["read_only"]) == ("/keys", True)
    assert (mount["type"], mount["target"], mount["read_only"]) == ("bind", "/engine", True)
    assert mount["source"].startswith("${INFLIGHT_ENGINE_DIR:?")
    assert mount["bind"] == {"create_host_path": False}


@pytest.mark.parametrize("kind", KINDS)
def test_a_root_that_can_not_be_written_has_places_that_can(kind: str) -> None:
    found = service(kind)
    assert found["read_only"] is True
    places = {place.partition(":")[0]: place.partition(":")[2].split(",") for place in found["tmpfs"]}
    assert set(places) == {"/tmp", "/run/inflight"}
    assert {"exec", "mode=1777"} <= set(places["/run/inflight"])
    assert int(found["shm_size"].removesuffix("gb")) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_those_of_serve_and_a_drain_has_its_time(kind: str) -> None:
    found = service(kind)
    assert set(found["environment"]) <= variables()
    drain = value("drain_seconds", found["environment"].get("INFLIGHT_SERVE_DRAIN_SECONDS"))
    assert seconds(found["stop_grace_period"]) >= drain + 2 * _STOP_TIMEOUT
    assert seconds(found["healthcheck"]["start_period"]) >= value("start_timeout")


def test_only_the_gpu_service_reserves_gpus() -> None:
    (device,) = service("gpu")["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert service("gpu")["ulimits"]["memlock"] == -1
    assert "deploy" not in service("cpu")


def test_prometheus_scrapes_the_server_where_it_shows_metrics() -> None:
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [target for job in config["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    for name, port in (target.split(":") for target in targets):
        for kind in KINDS:
            assert any(published.endswith(f":{port}") for published in load(kind)["services"][name]["ports"])
    assert seconds(config["global"]["scrape_timeout"]) < seconds(config["global"]["scrape_interval"])
    prometheus = load("cpu")["services"]["prometheus"]
    place = next(flag.partition("=")[2] for flag in prometheus["command"] if flag.startswith("--config.file="))
    assert f"./prometheus/prometheus.yml:{place}:ro" in prometheus["volumes"]
    (rules,) = config["rule_files"]
    assert f"./prometheus/{rules}:{place.rpartition('/')[0]}/{rules}:ro" in prometheus["volumes"]

"""Which servers a request can reach, how many places these have, and what is said while they are unknown."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client import Deployment, EncoderDeployment, OpenAIServerFacts

from inflight.gateway.backends import BackendServer
from inflight.gateway.routes_file import RoutesFile
from inflight.gateway.server_pool import ServerPool
from inflight.gateway.servers import Encoder
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from tests.fixtures.errors import raises

BACKEND = "openai+http://127.0.0.1:9/v1?model=tea"
FLEET = {"name": "tea", "state": "unloaded", "max_seq_len": 100, "pinned": False}


def pool_of(folder: Path, routes: dict[str, Any], known: bool = True, **settings: Any) -> ServerPool:
    """One of a server with 8 sequences of `tea`, and a route's backend with a model of that name."""
    (folder / "routes.yaml").write_text(json.dumps({"routes": routes}))
    options: dict[str, Any] = {"routes": f"{folder}/routes.yaml", "state_dir": str(folder), **settings}
    pool = ServerPool(GatewaySettings(("127.0.0.1:1",), **options))
    pool._add_routed()
    for backend in pool._routed.values():
        assert isinstance(backend, BackendServer)
        backend.facts, backend.ready = OpenAIServerFacts("vllm", "tea", ("tea",), "1", "print"), True
    if known:
        served = {"model": "tea", "max_sequences": 8, "max_seq_len": 100}
        pool.servers[0].deployment, pool.servers[0].ready = Deployment("ensemble", "inflight", {}, served=served), True
    return pool


def test_places_are_those_of_the_servers_that_a_request_can_reach(tmp_path: Path) -> None:
    route = {"targets": [{"model": "tea"}, {"server": BACKEND, "weight": 0}]}
    pool = pool_of(tmp_path, {"chat": route})
    reached = pool.candidates("generate", "chat")
    assert [(each.model, each.address) for each in reached] == [("tea", None), ("tea", BACKEND)]
    assert [pool.places("generate", "tea", each.address) for each in reached] == [16, 256]
    assert [pool.running("generate", "tea", each.address) for each in reached] == [8, 256]


def test_the_limit_is_not_shared_with_servers_of_routes_that_are_gone(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, {"chat": {"targets": [{"model": "tea"}, {"server": BACKEND}]}}, max_in_flight=272)
    assert pool.places("generate", "tea") == 16
    pool.routes._file = RoutesFile()
    assert pool.places("generate", "tea") == 272


def test_while_the_servers_start_nothing_is_said_of_their_models(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, {"chat": {"targets": [{"model": "tea"}]}}, known=False)
    for name in ("tea", "none"):
        with raises(ApiError, "model_not_ready"):
            pool.candidates("generate", name)
    with raises(ApiError, "model_not_ready"):
        pool.only_encoder("embed")
    assert pool.for_batches("generate") is None
    known = pool_of(tmp_path, {"chat": {"targets": [{"model": "tea"}]}})
    with raises(ApiError, "model_not_found", naming="none"):
        known.candidates("generate", "none")
    assert set(known.for_batches("generate") or ()) == {"tea"}


def test_a_model_that_is_loaded_on_request_is_a_target_and_not_missing(tmp_path: Path) -> None:
    ladder = {"rungs": [{"model": "small"}]}
    pool = pool_of(tmp_path, {"chat": {"targets": [{"model": "tea"}], "ladder": ladder}}, known=False)
    pool.fleet.models = {"tea": FLEET}
    with raises(ApiError, "model_not_ready"):
        pool.candidates("generate", "chat")
    (found,) = pool.candidates("generate", "chat", unloaded=True)
    assert (found.target, found.model) == (pool.servers[0], "tea")
    assert pool.is_loaded_for_requests(found.target)
    (missing,) = pool.missing_targets()
    assert "small" in missing


@pytest.mark.parametrize(("target", "said"), [("tea", 0), ("green", 1)])
def test_a_missing_target_is_said_once_and_only_of_known_servers(
    tmp_path: Path, target: str, said: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.gateway.server_pool.CHECK_SECONDS", 0.001)

    async def run() -> None:
        pool = pool_of(tmp_path, {"chat": {"targets": [{"model": target}]}}, known=False)
        (server,) = pool.servers
        server.encoders["embed"] = Encoder(server, EncoderDeployment("embed", "e", True))  # it is found first
        following = asyncio.create_task(pool._follow_routes())
        await asyncio.sleep(0.02)
        assert not caplog.records
        server.deployment = Deployment("ensemble", "inflight", {}, served={"model": "tea"})
        await asyncio.sleep(0.02)
        following.cancel()
        assert len(caplog.records) == said

    asyncio.run(run())

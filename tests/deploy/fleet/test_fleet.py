"""Three models with memory for two, behind a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from inflight.commands.fleet import FleetOptions, make_fleet
from inflight.deploy.fleet.fleet import Fleet, FleetModel
from inflight.deploy.fleet.residency import Limits
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.server import ServerSettings
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.engines import TinyEngine
from tests.fixtures.gateway_requests import Answer, complete, get, post
from tests.fixtures.server import fake_engine
from tests.fixtures.waiting import wait_until

RESIDENCE = 0.5
FAMILIES = ("llama", "qwen2", "mistral")
LLAMA, QWEN, MISTRAL = (f"tiny-{family}" for family in FAMILIES)
DAMAGED = "damaged"
_OPTIONS = DeploymentOptions(kv_cache_tokens=4096, parameters=fake_engine(step_seconds=0.2))


@pytest.fixture
def fleet(tiny_engine: TinyEngine, tmp_path: Path) -> Iterator[Fleet]:
    """Four models, one of them damaged, and memory for two. No model is loaded."""
    damaged = tmp_path / "engine"
    shutil.copytree(tiny_engine("llama"), damaged)
    manifest = json.loads((damaged / "engine.json").read_text())
    (damaged / "engine.json").write_text(json.dumps(manifest | {"name": DAMAGED}))
    (damaged / "tokenizer.json").write_text("{}")
    engines = [(family, tiny_engine(family)) for family in FAMILIES]
    engines.append((DAMAGED, damaged))
    options = FleetOptions(10**9, (), None, RESIDENCE)
    fleet = make_fleet(engines, _OPTIONS, ServerSettings(), options, drain_seconds=5.0)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def front(fleet: Fleet, tmp_path: Path) -> Iterator[GatewayProcesses]:
    values: dict[str, Any] = {"key_file": f"{tmp_path}/keys.json", "state_dir": f"{tmp_path}/state"}
    gateway = GatewayProcesses(GatewaySettings((), port=0, keep_alive_seconds=0.5, **values), lambda line: None)
    gateway.start(fleet.addresses, fleet.socket)
    try:
        wait_until(lambda: get(gateway, "/ready").status == 200)
        yield gateway
    finally:
        gateway.stop()


def states(gateway: GatewayProcesses) -> dict[str, str]:
    return {model["id"]: model["state"] for model in get(gateway, "/v1/models").json["data"]}


def ask(gateway: GatewayProcesses, model: str, tokens: int = 5, **fields: Any) -> Answer:
    return complete(gateway, model=model, max_tokens=tokens, **fields)


def test_a_server_that_can_not_be_stopped_is_not_unloading_for_ever(tmp_path: Path) -> None:
    def stop(*arguments: object) -> None:
        raise OSError("no")

    model = FleetModel("tea", tmp_path, None, _OPTIONS, ServerSettings(), 1)  # type: ignore[arg-type]
    fleet = Fleet([model], Limits(1), lambda line: None)
    fleet.servers["tea"] = SimpleNamespace(stop=stop)  # type: ignore[assignment]
    fleet._residency.models["tea"].state = "unloading"
    with pytest.raises(OSError, match="no"):
        asyncio.run(fleet._unload("tea"))
    assert not fleet._residency.models["tea"].in_memory


def test_models_replace_each_other_and_no_open_answer_is_ended(
    fleet: Fleet, front: GatewayProcesses, tmp_path: Path
) -> None:
    assert set(states(front).values()) == {"unloaded"}
    with ThreadPoolExecutor() as threads:
        streamed = threads.submit(ask, front, LLAMA, tokens=1900, stream=True)
        assert ask(front, QWEN).json["usage"]["completion_tokens"] == 5
        impatient = post(
            front,
            "/v1/completions",
            {"model": MISTRAL, "prompt": "tea", "max_tokens": 1},
            headers={"x-inflight-deadline-ms": "50"},
        )
        assert (impatient.status, impatient.error["code"]) == (503, "model_not_ready")
        assert int(impatient.headers["retry-after"]) >= 1
        waited = ask(front, MISTRAL, stream=True)
        assert waited.body.startswith(b": ")
        assert len(waited.events) >= 5
        loaded = states(front)
        assert (loaded[LLAMA], loaded[QWEN], loaded[MISTRAL]) == ("loaded", "unloaded", "loaded")
        broken = ask(front, DAMAGED)
        assert (broken.status, broken.error["code"]) == (503, "model_not_ready")
        assert "engine_damaged" in broken.error["message"]
        assert str(tmp_path) not in broken.error["message"]
        assert states(front)[DAMAGED] == "failed"
        assert not streamed.done()
        front._workers[0].kill()  # whose requests end, and hold their models no longer
    wait_until(lambda: ask(front, QWEN).status == 200)
    page = get(front, "/metrics").body.decode()
    assert f'inflight_model_loads_total{{model="{QWEN}"}} 2.0' in page
    assert f'inflight_model_loaded{{model="{DAMAGED}"}} 0.0' in page


@pytest.mark.slow  # it waits for Triton's own restart
def test_a_killed_server_of_a_model_harms_no_other_and_a_stop_breaks_a_load_off(
    fleet: Fleet, front: GatewayProcesses
) -> None:
    before = psutil.Process().children(recursive=True)
    assert ask(front, LLAMA).status == 200
    with ThreadPoolExecutor() as threads:
        other = threads.submit(ask, front, QWEN, tokens=50, stream=True)
        wait_until(lambda: states(front)[QWEN] == "loaded")
        os.kill(fleet.servers[LLAMA].pid, signal.SIGKILL)
        wait_until(lambda: ask(front, LLAMA).status == 200)
        assert len(other.result().events) >= 50
        late = threads.submit(ask, front, MISTRAL)
        wait_until(lambda: states(front)[MISTRAL] == "loading")
        family = set(psutil.Process().children(recursive=True)).difference(before)
        began = time.monotonic()
        fleet.stop()
        assert time.monotonic() - began < 30
        assert late.result().status == 503
    assert not [each for each in family if each.is_running() and "tritonserver" in each.name()]

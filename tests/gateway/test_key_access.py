"""What requests with and without an API key get from a running gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key, revoke_key
from inflight.gateway.key_file import ApiKey, Quotas, default_key_file
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.errors import raises
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, get, post
from tests.fixtures.waiting import wait_until
from tests.gateway.test_batches import create, ended, rows

ROUTES = [
    *(
        "/v1/models",
        f"/v1/models/{MODEL}",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/nothing",
        "/metrics",
        "/live/data",
    ),
    *(
        "/version",
        "/tokenize",
        "/detokenize",
        "/v1/files",
        "/v1/batches",
        "/v1/responses",
        "/openapi.json",
        "//v1/models",
    ),
]


def add(path: Path, name: str = "app", models: tuple[str, ...] = (), **options: Any) -> str:
    return add_key(path, ApiKey.new(name, tenant=f"tenant-{name}", models=models, **options))


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "new" / "keys.json"


@pytest.fixture(scope="module")
def locked(hurried_server: Server, key_file: Path) -> Iterator[GatewayProcesses]:
    """A gateway whose requests need a key."""
    add(key_file, "first")
    with running_gateway(hurried_server, key_file=str(key_file)) as gateway:
        yield gateway


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def with_key(gateway: GatewayProcesses, token: str, path: str = "/v1/models") -> Answer:
    return get(gateway, path, bearer(token))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "HEAD"])
def test_every_route_needs_a_key(locked: GatewayProcesses, path: str, method: str) -> None:
    assert get(locked, path, method=method).status == 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/live", "/docs"])
def test_health_and_pages_need_none(locked: GatewayProcesses, path: str) -> None:
    assert get(locked, path).status == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic abc", "Bearer sk-inflight-", "bearer \u00ff"]
)
def test_every_wrong_key_gets_the_same_answer(locked: GatewayProcesses, header: str) -> None:
    answer = get(locked, "/v1/models", {"authorization": header})
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.body == get(locked, "/v1/models").body


def test_a_key_works_until_it_is_revoked(locked: GatewayProcesses, key_file: Path) -> None:
    token = add(key_file)
    wait_until(lambda: with_key(locked, token).status == 200)
    revoke_key(key_file, "app")
    wait_until(lambda: with_key(locked, token).status == 401)


def test_a_key_may_be_for_some_models_alone(locked: GatewayProcesses, key_file: Path) -> None:
    token = add(key_file, "narrow", models=("another",))
    wait_until(lambda: with_key(locked, token).status == 200)
    assert with_key(locked, token).json["data"] == []
    assert MODEL not in with_key(locked, token, "/openapi.json").body.decode()
    allowed = post(locked, "/tokenize", {"model": "another", "prompt": "x"}, bearer(token))
    assert allowed.status == 404
    assert MODEL not in allowed.body.decode()
    answer = post(locked, "/v1/completions", {"model": MODEL, "prompt": "x"}, bearer(token))
    assert (answer.status, answer.error["param"]) == (403, "model")


def test_batches_keep_to_the_models_of_their_key_and_count_to_its_quotas(
    locked: GatewayProcesses, key_file: Path
) -> None:
    tokens = {"narrow-batch": add(key_file, "narrow-batch", models=("another",)), "bounded": ""}
    quotas = Quotas(tokens_per_minute=9000, max_concurrent=2)
    tokens["bounded"] = add_key(key_file, ApiKey.new("bounded", quotas=quotas))
    wait_until(lambda: all(with_key(locked, token).status == 200 for token in tokens.values()))
    with openai_client(locked, api_key=tokens["narrow-batch"]) as client:
        batch = create(client, rows(1))
        assert [each.code for each in ended(client, batch).errors.data] == ["model_not_found"]
    with openai_client(locked, api_key=tokens["bounded"]) as client:
        batch = ended(client, create(client, rows(6)))
        assert (batch.status, batch.request_counts.completed) == ("completed", 6)
        answer = client.completions.with_raw_response.create(model=MODEL, prompt="tea", max_tokens=1)
        left = 9000 - int(answer.headers["x-ratelimit-remaining-tokens"])
        assert left - 10 <= batch.usage.total_tokens < left


@pytest.mark.parametrize("permission", [{}, {"max_priority": 1}, {"trusted": True}], ids=str)
def test_a_priority_beyond_the_key_is_refused(
    locked: GatewayProcesses, key_file: Path, permission: dict[str, Any]
) -> None:
    token = add(key_file, f"key{permission}", **permission)
    wait_until(lambda: with_key(locked, token).status == 200)
    completion = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "service_tier": ("/v1/completions", {**completion, "service_tier": "priority"}),
        "priority": ("/v1/embeddings", {"model": MODEL, "input": "x", "priority": 1}),
    }
    for field, (path, body) in bodies.items():
        answer = post(locked, path, body, bearer(token))
        if permission:
            assert answer.status != 403
        else:
            assert (answer.status, answer.error["code"], answer.error["param"]) == (403, "permission_denied", field)
    flexible = post(locked, "/v1/completions", {**completion, "service_tier": "flex"}, bearer(token))
    assert flexible.json["service_tier"] == "flex"


def test_metrics_name_tenants_to_trusted_keys_and_no_key(locked: GatewayProcesses, key_file: Path) -> None:
    other, token = add(key_file, "unmeasured"), add(key_file, "measured", trusted=True)
    wait_until(lambda: with_key(locked, token).status == 200)
    assert [with_key(locked, other, path).status for path in ("/metrics", "/live/data")] == [403, 403]
    assert with_key(locked, token, "/live/data").status == 200
    wait_until(lambda: b'tenant="tenant-measured"' in with_key(locked, token, "/metrics").body)
    page = with_key(locked, token, "/metrics").body.decode()
    assert "\nnv_inference_request_success{" in page  # the engine's page, whose own port stays inside a container
    assert token not in page


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_without_keys_only_this_machine_is_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with raises(InflightError, "invalid_parameter", naming=host):
        GatewaySettings(("127.0.0.1:1",), host=host).check()
    add(default_key_file())
    GatewaySettings(("127.0.0.1:1",), host=host).check()


def test_a_key_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    settings = GatewaySettings(("127.0.0.1:1",), key_file=str(tmp_path / "keys.json"))
    with raises(InflightError, "invalid_parameter", naming="keys.json"):
        settings.check()
    add(tmp_path / "keys.json")
    settings.check()

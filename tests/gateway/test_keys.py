"""API keys: what the file holds, what a running gateway makes of it, and that nothing opens up by accident."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.deploy.server.server import Server
from inflight.gateway.keys import KeyFile, KeyRing
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.gateway.conftest import running_gateway
from tests.gateway.http import MODEL, Answer, get, post

INFLIGHT = str(Path(sys.executable).with_name("inflight"))
ROUTES = [
    *("/v1/models", f"/v1/models/{MODEL}", "/v1/chat/completions", "/v1/completions", "/v1/nothing", "/metrics"),
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


def add(path: Path, name: str = "app", models: tuple[str, ...] = (), expires: int | None = None) -> str:
    return KeyFile(path).add(name, f"tenant-{name}", models, expires)[1]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "new" / "keys.json"


@pytest.fixture(scope="module")
def locked(hurried_server: Server, key_file: Path) -> Iterator[GatewayProcesses]:
    """A gateway whose requests need a key."""
    add(key_file, "first")
    with running_gateway(hurried_server, key_file=str(key_file)) as gateway:
        yield gateway


def with_key(gateway: GatewayProcesses, token: str, path: str = "/v1/models") -> Answer:
    return get(gateway, path, {"authorization": f"Bearer {token}"})


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "HEAD"])
def test_every_route_needs_a_key(locked: GatewayProcesses, path: str, method: str) -> None:
    assert get(locked, path, method=method).status == 401


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_needs_none(locked: GatewayProcesses, path: str) -> None:
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
    KeyFile(key_file).revoke("app")
    wait_until(lambda: with_key(locked, token).status == 401)


def test_a_key_may_be_for_some_models_alone(locked: GatewayProcesses, key_file: Path) -> None:
    token = add(key_file, "narrow", models=("another",))
    wait_until(lambda: with_key(locked, token).status == 200)
    assert with_key(locked, token).json["data"] == []
    answer = post(locked, "/v1/completions", {"model": MODEL, "prompt": "x"}, {"authorization": f"Bearer {token}"})
    assert (answer.status, answer.error["param"]) == (403, "model")


def test_metrics_name_the_tenant_and_no_key(locked: GatewayProcesses, key_file: Path) -> None:
    token = add(key_file, "measured")
    wait_until(lambda: with_key(locked, token).status == 200)
    page = with_key(locked, token, "/metrics").body.decode()
    assert 'tenant="tenant-measured"' in page
    assert token not in page


def test_a_file_that_becomes_unreadable_denies_everybody(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    token = add(path)
    ring = KeyRing(path)
    assert ring.authenticate(token) is not None
    for harm in (lambda: path.write_text("{"), path.unlink):
        harm()
        ring._refresh()
        assert ring.required
        assert ring.authenticate(token) is None
        assert ring.problem


def test_keys_are_needed_once_there_are_some(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ring = KeyRing(path)
    assert not ring.required
    token = add(path)
    ring._refresh()
    assert ring.required
    assert ring.authenticate(token) is not None


def test_an_expired_key_is_refused(tmp_path: Path) -> None:
    token = add(tmp_path / "keys.json", expires=int(time.time()) - 1)
    assert KeyRing(tmp_path / "keys.json").authenticate(token) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"keys": 5}', b'{"keys": [5]}', b'{"keys": [{"id": 1}]}', b"\xff", b"[" * 100000]
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with raises(InflightError, "invalid_parameter", naming="keys.json"):
        KeyFile(path).read()
    assert KeyRing(path).required


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys.json"
    add(path)
    path.chmod(mode)
    with raises(InflightError, "permission_denied", naming="chmod 600"):
        KeyFile(path).read()


def test_the_file_and_the_record_hold_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, token = KeyFile(path).add("app", "app", (), None)
    assert token.removeprefix("sk-inflight-") not in path.read_text() + repr(key)
    assert key.sha256 not in repr(key)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_keys_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    commands = [[INFLIGHT, "key", "add", f"app-{n}", "--key-file", str(path), "--json"] for n in range(6)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    tokens = {json.loads(each.communicate()[0])["key"] for each in running}
    ring = KeyRing(path)
    assert len({getattr(ring.authenticate(token), "name", None) for token in tokens} - {None}) == 6


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_without_keys_only_this_machine_is_answered(tmp_path: Path, host: str) -> None:
    path = tmp_path / "keys.json"
    settings = GatewaySettings(("127.0.0.1:1",), host=host, key_file=str(path))
    with raises(InflightError, "invalid_parameter", naming=host):
        settings.check()
    add(path)
    settings.check()

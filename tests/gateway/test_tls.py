"""A gateway with a certificate answers HTTPS alone, and starts with no certificate that it can't use."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import openai
import pytest
from inflight_client import InflightError

from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.certificates import Certificates
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.errors import raises
from tests.fixtures.gateway_requests import MODEL
from tests.fixtures.waiting import wait_until


@pytest.fixture(scope="module")
def secure(hurried_server: Server, certificates: Certificates) -> Iterator[GatewayProcesses]:
    files = certificates.server
    address = f"{hurried_server.grpc_address},metrics=http://{hurried_server.metrics_address}/metrics"
    with TemporaryDirectory() as directory:
        settings = GatewaySettings(
            (address,),
            port=0,
            key_file=f"{directory}/keys.json",
            state_dir=f"{directory}/state",
            tls_certificate=str(files.certificate),
            tls_key=str(files.key),
        )
        replace(settings, key_file=None).check()
        running = GatewayProcesses(settings, lambda line: None)
        running.start()
        try:
            wait_until(lambda: ready(running, certificates))
            yield running
        finally:
            running.stop()


def ready(gateway: GatewayProcesses, certificates: Certificates) -> bool:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    try:
        with urllib.request.urlopen(gateway.url.replace("/v1", "/ready"), timeout=60, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def client_of(gateway: GatewayProcesses, ca: Path) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(ca)))
    return openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=60, http_client=http)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_gets_answers_by_https(
    secure: GatewayProcesses, certificates: Certificates, stream: bool
) -> None:
    assert secure.url.startswith("https://")
    with client_of(secure, certificates.ca) as client:
        if stream:
            with client.completions.create(model=MODEL, prompt="tea", max_tokens=4, stream=True) as chunks:
                assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
        else:
            answer = client.completions.create(model=MODEL, prompt="tea", max_tokens=4)
            assert answer.choices[0].finish_reason == "length"


def test_a_client_that_trusts_another_authority_gets_nothing(
    secure: GatewayProcesses, certificates: Certificates
) -> None:
    with client_of(secure, certificates.stranger.certificate) as client, pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_plain_http_is_closed_and_harms_nothing(secure: GatewayProcesses, certificates: Certificates) -> None:
    with socket.create_connection(("127.0.0.1", secure.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        try:
            found = connection.recv(1000)
        except ConnectionResetError:
            found = b""
    assert b"200" not in found
    assert ready(secure, certificates)


@pytest.mark.parametrize("kind", ["another's", "no key", "absent"])
def test_files_that_do_not_belong_together_are_one_sentence(
    certificates: Certificates, tmp_path: Path, kind: str
) -> None:
    key = certificates.elsewhere.key if kind == "another's" else tmp_path / "mine.key"
    if kind == "no key":
        key.write_text("tea\n")
    with raises(InflightError, "invalid_parameter", naming=str(key)):
        GatewaySettings((), tls_certificate=str(certificates.server.certificate), tls_key=str(key)).check()


def test_the_command_refuses_them_before_it_starts(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = certificates.elsewhere.key
    files = ("--tls-certificate", str(certificates.server.certificate), "--tls-key", str(key))
    done = CommandRunner(monkeypatch, capsys, "gateway")("--server", "127.0.0.1:1", "--port", "0", *files)
    assert (done.code, done.out) == (1, "")
    assert str(key) in done.err.replace("\n", "")

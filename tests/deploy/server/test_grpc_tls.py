from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import BuildError
from inflight.cli import main
from inflight.deploy.errors import DeployError
from inflight.deploy.server.grpc_tls import GrpcTls
from inflight.deploy.server.server import Server, ServerSettings
from tests.fixtures.certificates import Certificate, Certificates
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.open_streams import TIMEOUT

HOST = "127.0.0.2"


def test_nothing_is_asked_of_a_server_without_certificates() -> None:
    assert GrpcTls.from_options(None, None, None) is None


def test_a_certificate_without_its_key_is_said(certificates: Certificates) -> None:
    with raises(DeployError, "invalid_parameter", naming="--grpc-tls-key"):
        GrpcTls.from_options(certificates.server.certificate, None, None)
    with raises(DeployError, "invalid_parameter", naming="--grpc-tls-certificate"):
        GrpcTls.from_options(None, None, certificates.ca)


@pytest.mark.parametrize(
    ("certificate", "key", "ca", "words"),
    [
        ("server.pem", "client.key", None, "key values mismatch"),
        ("server.key", "server.key", None, "together"),
        ("nowhere.pem", "server.key", None, ("--grpc-tls-certificate", "nowhere.pem")),
        ("server.pem", "server.key", "server.key", ("--grpc-tls-ca", "server.key")),
    ],
)
def test_files_that_do_not_fit_are_named(
    certificates: Certificates, certificate: str, key: str, ca: str | None, words: str
) -> None:
    home = certificates.ca.parent
    with raises(DeployError, "invalid_parameter", naming=words):
        GrpcTls.from_options(home / certificate, home / key, None if ca is None else home / ca)


def test_a_mistake_at_the_command_is_one_sentence(
    certificates: Certificates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", str(tmp_path), "--grpc-tls-key", str(certificates.server.key)])
    assert caught.value.code == 1
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "give --grpc-tls-certificate" in stderr


def greeted(server: Server, certificates: Certificates, shown: Certificate | None) -> bool:
    """Whether the server takes a client that shows that certificate, or none."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.set_alpn_protocols(["h2"])
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    raw = socket.create_connection((HOST, server.ports.grpc), timeout=TIMEOUT)
    with raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as connection:
        try:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return bool(connection.recv(1))  # the server's settings, or an alert that says no
        except (ssl.SSLError, ConnectionError):
            return False


def test_a_server_speaks_tls_with_those_alone_who_show_what_it_asks_for(
    tiny_engine: TinyEngine, certificates: Certificates
) -> None:
    tls = GrpcTls.from_options(certificates.server.certificate, certificates.server.key, certificates.ca)
    with Server(tiny_engine("llama"), settings=ServerSettings(HOST, grpc_tls=tls)) as server:
        assert greeted(server, certificates, certificates.client)
        assert not greeted(server, certificates, None)
        assert not greeted(server, certificates, certificates.stranger)
        for port in (server.ports.http, server.ports.metrics):  # which ask for no certificate
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, port))
            socket.create_connection(("127.0.0.1", port)).close()


OPEN = "0.0.0.0"


@pytest.mark.parametrize(
    ("asked", "with_ca", "taken"),
    [
        ({}, False, True),
        ({"host": OPEN}, False, False),
        ({"host": OPEN, "behind_proxy": True}, False, True),
        ({"http_host": OPEN}, False, False),
        ({"metrics_host": OPEN}, False, False),
        ({"host": OPEN, "http_host": "127.0.0.1", "metrics_host": "127.0.0.1"}, False, False),
        ({"host": OPEN}, True, True),
        ({"host": OPEN, "http_host": OPEN}, True, False),
        ({"host": OPEN, "http_host": OPEN, "behind_proxy": True}, True, True),
    ],
)
def test_other_machines_are_let_in_behind_a_proxy_or_with_certificates_alone(
    certificates: Certificates, tmp_path: Path, asked: dict[str, Any], with_ca: bool, taken: bool
) -> None:
    tls = GrpcTls.from_options(
        certificates.server.certificate, certificates.server.key, certificates.ca if with_ca else None
    )
    with pytest.raises((DeployError, BuildError)) as caught:
        Server(tmp_path / "nowhere", settings=ServerSettings(**asked, grpc_tls=tls)).start()
    assert isinstance(caught.value, DeployError | BuildError)
    assert caught.value.code == ("engine_not_found" if taken else "invalid_parameter")


def test_an_address_that_others_reach_is_refused_at_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "engine.json").write_text("{}")
    for proxy, code in (("0", "invalid_parameter"), ("1", "engine_damaged")):
        monkeypatch.setenv("INFLIGHT_SERVE_BEHIND_PROXY", proxy)
        with pytest.raises(SystemExit) as caught:
            main(["serve", str(tmp_path / "damaged"), "--host", OPEN])
        assert caught.value.code == 1
        assert capsys.readouterr().err.endswith(f"[{code}]\n")

"""Who is trusted over gRPC's TLS, and who is not; proxies between this machine and itself."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from inflight_client import InflightError
from inflight_client._grpc.channel import credentials, options
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline

from tests.client._grpc.scripted_calls import SOON, script
from tests.client._grpc.transports import failure, request, serving_at
from tests.client.support.transports import TransportVariant, both_grpc
from tests.fixtures.certificates import Certificate, Certificates
from tests.fixtures.errors import raises


def server_credentials(shown: Certificate, asks_for: Path | None = None) -> grpc.ServerCredentials:
    """A server's side: what it shows, and whose certificates it asks for."""
    return grpc.ssl_server_credentials(
        [(shown.key.read_bytes(), shown.certificate.read_bytes())],
        root_certificates=asks_for.read_bytes() if asks_for else None,
        require_client_auth=asks_for is not None,
    )


@both_grpc
def test_a_server_is_trusted_for_its_authority_and_its_name(way: TransportVariant, certificates: Certificates) -> None:
    with serving_at(script, credentials=server_credentials(certificates.server)) as where:
        for host in (where, where.replace("localhost", "127.0.0.1")):
            with way.to(f"grpcs://{host}", tls=Tls(ca=certificates.ca)) as caller:
                assert caller.texts(request(), Deadline(SOON)) == ["tea", " and", " cake"]
        with way.to(f"grpcs://{where}") as caller:  # the system's authorities know nothing of this one
            code, sentence = failure(lambda: caller.ask("model_ready", "ensemble", Deadline(SOON)))
            assert code == "permission_denied"
            assert f"no trusted connection to {where} is possible" in sentence


@both_grpc
def test_another_hosts_certificate_is_not_trusted(way: TransportVariant, certificates: Certificates) -> None:
    shown = server_credentials(certificates.elsewhere)
    with serving_at(script, credentials=shown) as where, way.to(f"grpcs://{where}", tls=Tls(certificates.ca)) as caller:
        assert failure(lambda: caller.texts(request(), Deadline(SOON)))[0] == "permission_denied"


@both_grpc
def test_a_server_that_asks_for_certificates_gets_the_clients(
    way: TransportVariant, certificates: Certificates
) -> None:
    with serving_at(script, credentials=server_credentials(certificates.server, certificates.ca)) as where:
        mine = Tls(certificates.ca, certificates.client.certificate, certificates.client.key)
        with way.to(f"grpcs://{where}", tls=mine) as caller:
            assert caller.texts(request(), Deadline(SOON)) == ["tea", " and", " cake"]
        with way.to(f"grpcs://{where}", tls=Tls(certificates.ca)) as caller:
            code, _ = failure(lambda: caller.texts(request(), Deadline(SOON)))
            assert code in (
                "permission_denied",
                "server_gone",
                "server_unreachable",
                "connection_closed",
            )  # the server just hangs up


@both_grpc
def test_one_side_without_tls_is_no_server_to_the_other(way: TransportVariant, certificates: Certificates) -> None:
    with serving_at(script) as where, way.to(f"grpcs://{where}", tls=Tls(certificates.ca)) as caller:
        assert failure(lambda: caller.texts(request(), Deadline(SOON)))[0] == "permission_denied"
    with serving_at(script, credentials=server_credentials(certificates.server)) as where, way.to(where) as caller:
        assert failure(lambda: caller.texts(request(), Deadline(SOON)))[0] in ("server_gone", "connection_closed")


def test_files_that_cannot_be_used_are_named(certificates: Certificates, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    mine, other = certificates.client, certificates.server
    for tls, code, words in (
        (Tls(ca=tmp_path / "nobody"), "permission_denied", f"the CA's certificates in {tmp_path}/nobody can't be read"),
        (Tls(ca=nonsense), "invalid_parameter", f"{nonsense} has no certificates in PEM format"),
        (Tls(key=mine.key), "invalid_parameter", "without its certificate"),
        (Tls(certificate=mine.certificate, key=tmp_path), "permission_denied", f"the key in {tmp_path} can't be read"),
        (Tls(certificate=mine.certificate, key=other.key), "invalid_parameter", "matching certificate and key"),
        (Tls(certificate=mine.certificate, key=nonsense), "invalid_parameter", "matching certificate and key"),
    ):
        with raises(InflightError, code) as got:
            credentials(Address.parse("grpcs://host"), tls)
        assert words in str(got.value)


@pytest.mark.parametrize(
    ("address", "direct"),
    [
        ("127.0.0.1:8001", True),
        ("127.9.9.9:8001", True),
        ("localhost", True),
        ("[::1]:8001", True),
        ("10.0.0.1:8001", False),
        ("localhost.example:8001", False),
        ("[2001:db8::1]:8001", False),
    ],
)
def test_no_proxy_stands_between_this_machine_and_itself(address: str, direct: bool) -> None:
    assert (("grpc.enable_http_proxy", 0) in options(Address.parse(address))) is direct

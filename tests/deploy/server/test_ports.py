from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.server.ports import ListenHosts, is_free, is_loopback, numeric, reachable, reserved_ports
from tests.fixtures.errors import raises
from tests.fixtures.host_names import resolve_examples

HOST = "127.0.0.1"


def refuse(hosts: ListenHosts, *ports: int | None) -> None:
    with reserved_ports(hosts, *ports):
        pass


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


def test_free_ports_are_three_different_ones_that_can_be_listened_on() -> None:
    with reserved_ports(ListenHosts(), None, 0, None) as ports:
        assert len({ports.http, ports.grpc, ports.metrics}) == 3
        assert all(is_free(HOST, port) for port in (ports.http, ports.grpc, ports.metrics))


def test_a_reserved_port_is_left_to_a_server_that_asks_for_it_by_number_alone() -> None:
    def listen(reuse: bool) -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            listener.bind((HOST, ports.grpc))
            listener.listen()

    with reserved_ports(ListenHosts()) as ports:
        listen(reuse=True)
        with pytest.raises(OSError, match="in use"):
            listen(reuse=False)
    listen(reuse=False)


def test_a_busy_port_is_named_with_its_option(taken: int) -> None:
    with raises(DeployError, "port_in_use", naming=f"--grpc-port {taken}"):
        refuse(ListenHosts(), None, taken, None)


def test_one_port_for_two_purposes_is_refused() -> None:
    with raises(DeployError, "invalid_parameter", naming="9000"):
        refuse(ListenHosts(), 9000, 9000)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_this_machines_is_refused(host: str) -> None:
    with raises(DeployError, "invalid_parameter", naming=host):
        refuse(ListenHosts(host, host, host))


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "127.0.0.1"), ("box", "box")]
)
def test_a_server_that_listens_everywhere_is_reached_at_home(host: str, address: str) -> None:
    assert reachable(host) == address


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(("127.0.0.1", True), ("127.1.2.3", True), ("127.1", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("0", False), ("::", False), ("192.0.2.1", False)),
    ],
)
def test_loopback_is_what_no_other_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(numeric(host)) is loopback


@pytest.mark.parametrize("host", ["", "no.such.host.invalid", "[::1]", "a" * 70])
def test_a_name_without_an_address_is_refused(host: str) -> None:
    with raises(DeployError, "invalid_parameter"):
        numeric(host)


def test_a_name_stands_for_its_ipv4_address_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", (HOST, 0))]
    resolve_examples(monkeypatch, lambda *_, **__: addresses)
    assert numeric("ai.example") == HOST
    addresses.pop()
    assert numeric("ai.example") == "::1"


def test_each_port_is_looked_for_at_its_own_address() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        with reserved_ports(ListenHosts(grpc="127.0.0.3"), None, port) as ports:
            assert ports.grpc == port
        with raises(DeployError, "port_in_use", naming=(f"--metrics-port {port}", "127.0.0.2")):
            refuse(ListenHosts(metrics="127.0.0.2"), None, None, port)

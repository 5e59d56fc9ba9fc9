"""Addresses and ports to listen on: the requested ones, if they are free, and free ports for the rest."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from inflight.deploy.errors import DeployError, invalid

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ListenHosts:
    """The address of each port."""

    http: str = LOOPBACK
    grpc: str = LOOPBACK
    metrics: str = LOOPBACK


@dataclass(frozen=True)
class ListenPorts:
    """The ports of a server."""

    http: int
    grpc: int
    metrics: int

    def are_free(self, hosts: ListenHosts) -> bool:
        """Return whether a server could listen on all of them now."""
        pairs = ((hosts.http, self.http), (hosts.grpc, self.grpc), (hosts.metrics, self.metrics))
        return all(is_free(host, port) for host, port in pairs)


@contextmanager
def reserved_ports(
    hosts: ListenHosts, http: int | None = None, grpc: int | None = None, metrics: int | None = None
) -> Iterator[ListenPorts]:
    """Return the requested ports; None and 0 mean any free port. In the block, no program that asks for any free port
    is given one of them, also while no server listens there.

    A socket that is bound, and does not listen, leaves its port to a server that asks for it by number. Raises
    DeployError `port_in_use`, naming the option, if a requested port is in use, and `invalid_parameter` for the same
    port twice or an address that is not this machine's.
    """
    asked = (
        (hosts.http, "--http-port", http),
        (hosts.grpc, "--grpc-port", grpc),
        (hosts.metrics, "--metrics-port", metrics),
    )
    chosen = [port for _, _, port in asked if port]
    if len(chosen) != len(set(chosen)):
        raise invalid(
            f"HTTP, gRPC and metrics need three different ports, not {chosen}; choose others, or 0 for any free one."
        )
    with ExitStack() as stack:
        held = [stack.enter_context(_bind(host, option, port or 0)) for host, option, port in asked]
        yield ListenPorts(*(bound.getsockname()[1] for bound in held))


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now."""
    try:
        _bind(host, "", port).close()
    except DeployError:
        return False
    return True


def numeric(host: str) -> str:
    """Resolve a name to an address, IPv4 first: with a name, Triton's HTTP server silently listens nowhere.

    Raises DeployError `invalid_parameter` for a name that can't be resolved.
    """
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise _unusable(host, error) from error
    return str(min(addresses, key=lambda address: address[0] != socket.AF_INET)[4][0])


def is_loopback(address: str) -> bool:
    """Return whether the address is reachable from this machine only."""
    return ipaddress.ip_address(address).is_loopback


def reachable(host: str) -> str:
    """Return an address at which this machine reaches a server that listens on `host`, which may be all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def in_brackets(host: str) -> str:
    """Return the host in its form before a port."""
    return f"[{host}]" if ":" in host else host


def address(host: str, port: int | None) -> str:
    """Return the address at which this machine reaches a server that listens there."""
    return f"{in_brackets(reachable(host))}:{port}"


def gateway_address(hosts: ListenHosts, grpc: int | None, metrics: int | None) -> str:
    """Return the address of a server as the gateway takes it: with that of its metrics."""
    return f"{address(hosts.grpc, grpc)},metrics=http://{address(hosts.metrics, metrics)}/metrics"


def _bind(host: str, option: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise _unusable(host, error) from error
    try:
        # Like tritonserver: ignore connections that an earlier server left in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except PermissionError as error:
        listener.close()
        raise DeployError(
            f"{option} {port} is reserved for the system; choose a port above 1023, or 0 for any free one.",
            "port_in_use",
        ) from error
    except OSError as error:
        listener.close()
        if port and error.errno == 98:
            raise DeployError(
                f"{option} {port} is in use on {host}; choose another port, or 0 for any free one.",
                "port_in_use",
            ) from error
        raise _unusable(host, error) from error
    return listener


def _unusable(host: str, error: Exception) -> DeployError:
    why = getattr(error, "strerror", None) or error
    return invalid(f"No server can listen on the address {host} ({why}); use an address of this machine.")
